"""The report: `python -m analysis.report fit=reports/STUDY/fit.json` writes report.html and the figures beside it."""

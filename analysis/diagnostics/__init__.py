"""Findings: what a reader must know before trusting a fit."""

"""Draw curve.png: training and validation loss of the run at 1e18 over epochs, beside what was predicted of its end."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

HERE = Path(__file__).parent
EPOCH = 192.49e6
PREDICTED, LOW, HIGH = 0.6341, 0.622, 0.649

curve = pd.read_csv(HERE / "curve.csv")
training, validation = (curve.dropna(subset=[f"{name}_bits_per_byte"]) for name in ("training", "validation"))
figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
ax.plot(training.tokens / EPOCH, training.training_bits_per_byte, color="#9aa5b1", lw=1, label="training text")
ax.plot(validation.tokens / EPOCH, validation.validation_bits_per_byte, "o-", color="#c2410c", label="validation text")
end = validation.tokens.max() / EPOCH
ax.errorbar(
    [end + 0.25], [PREDICTED], [[PREDICTED - LOW], [HIGH - PREDICTED]], fmt="s", color="#1d4ed8", capsize=3,
    label="predicted, 90 %",
)  # fmt: skip
ax.set(ylim=(0.3, 1.0), xlim=(0, 9.2), xlabel="epochs", ylabel="bits per byte")
ax.set_xticks(range(10))
ax.grid(alpha=0.3)
ax.legend(frameon=False)
figure.savefig(HERE / "curve.png", dpi=150)

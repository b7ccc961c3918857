"""The lines that the README shows a newcomer, run as they stand."""

import re
from pathlib import Path

import torch

import microscale_torch

ROOT = Path(__file__).resolve().parents[3]


def test_the_readme_s_lines_train():
    text = (ROOT / "README.md").read_text()
    install = re.search(r"pip install --no-build-isolation \./examples/torch", text)
    assert install, "README shows how to install"
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    x = torch.randn(64, 32)
    names = {"model": model, "batches": [(x, x)] * 30, "loss_of": torch.nn.functional.mse_loss}
    before = torch.nn.functional.mse_loss(model(x), x).item()
    exec(code, names)
    assert isinstance(names["model"][0], microscale_torch.Linear) and names["model"][0].is_quantized
    assert torch.nn.functional.mse_loss(names["model"](x), x).item() < before / 2


def test_the_operators_of_the_documentation_run():
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/pytorch.md").read_text(), re.DOTALL).group(1)
    names = {}
    exec(code, names)
    assert names["y"].shape == (128, 64) and names["z"].shape == (128, 256)

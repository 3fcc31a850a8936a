"""The demo model can do what it was trained for: sums that its training text never held."""
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import ROOT


@pytest.mark.release
def test_heldout_sums(server):
    items = json.loads((ROOT / "scripts" / "train" / "heldout_sums.json").read_text())
    assert len(items) == 200

    def ask(item):
        text = server.chat(item["question"], temperature=0, max_tokens=32)["choices"][0]["message"]["content"]
        numbers = re.findall(r"\d+", text)
        return bool(numbers) and int(numbers[-1]) == item["answer"]

    with ThreadPoolExecutor(16) as pool:
        right = sum(pool.map(ask, items))
    print(f"{right} of 200 held-out sums are right")
    assert right >= 160, f"only {right} of 200"

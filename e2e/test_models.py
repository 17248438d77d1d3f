"""The one test file of all models: every file in this folder, on every target, against its stored golden."""

from __future__ import annotations

import pytest

from assay.pytest_plugin import bench, selection
from assay.tokens.check import Case, ModelCheck, model_checks
from assay.tokens.registry import models


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check" not in metafunc.fixturenames:
        return
    statuses, chosen = bench(metafunc.config).statuses, selection(metafunc.config)
    cases = list(model_checks(models(), statuses, chosen))
    if metafunc.function is test_residual_stream:
        cases = [case for case in cases if case[3].positions != 0]
    metafunc.parametrize("check", cases, ids=[model_check(metafunc.config, case).id for case in cases], indirect=True)


@pytest.fixture
def check(request: pytest.FixtureRequest) -> ModelCheck:
    return model_check(request.config, request.param, request.node.nodeid)


def model_check(config: pytest.Config, case: Case, nodeid: str = "") -> ModelCheck:
    return ModelCheck(case[0], case[1], str(config.getoption("--backend")), *case[2:], nodeid=nodeid)


def test_tokenizer(check: ModelCheck) -> None:
    """Before any token is compared: the tokenizer gives the golden's ids, and gives its text back."""
    stage = check.stage
    for golden in stage.golden.prompts:
        ids = stage.tokenizer.encode(golden.text)
        again = stage.tokenizer.decode(ids, special=True)
        check.examples += 1
        check.require(
            ids == golden.prompt_ids and again == golden.text,
            "the tokenizer is not the golden's",
            f"text     {golden.text!r}\n  got      {ids}\n  want     {golden.prompt_ids}\n  decoded  {again!r}",
        )


def test_tokens(check: ModelCheck) -> None:
    check.tokens()


def test_residual_stream(check: ModelCheck) -> None:
    check.residual_stream()

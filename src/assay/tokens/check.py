"""The full-model stage as recorded checks: one model, on one target, in one quantisation mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from assay import backends
from assay.backends.protocol import LanguageModel, NotRunHere, TargetStatus
from assay.bench import Selection, native, widest
from assay.compare import Mismatch
from assay.matrix import Cell
from assay.record.rows import CaseKey, Metric
from assay.tokens.describe import layers_data, local_data, prompt_data
from assay.tokens.extent import WHOLE, Extent, extent
from assay.tokens.spec import ModelSpec
from assay.tokens.stage import TokenStage

Case = tuple[ModelSpec, TargetStatus, str, Extent]


@dataclass
class ModelCheck:
    """What one test of a model knows and finds out. Tests raise :class:`Mismatch` with the report of a fault."""

    spec: ModelSpec
    status: TargetStatus
    backend: str
    quant: str = "fp32"
    extent: Extent = WHOLE
    threads: int = 1  # test processes fill the cores already, and any number gives the same bits
    nodeid: str = ""
    examples: int = 0
    headroom: float | None = None
    artifact: str = ""  # hash of the compiled code, once a check has compiled it
    metrics: list[Metric] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """``smollm2_135m-f32-x86_64_avx2``, with the mode in between where it is not fp32."""
        parts = (self.spec.name, "f32", "" if self.quant == "fp32" else self.quant, self.status.name)
        return "-".join(part.replace("-", "_") for part in parts if part)

    @property
    def native(self) -> bool:
        return native(self.status)

    @property
    def stage(self) -> TokenStage:
        """Raises :class:`NotRunHere` where the target does not run, or where the model is too large to emulate."""
        if not self.status.runs:
            raise NotRunHere(self.status.reason)
        if self.extent.prompts == 0:
            raise NotRunHere(
                f"{self.spec.name} takes minutes in an emulator: --profile ci runs one prompt of fp32 on this target, "
                "which checks its ops and layers in every profile"
            )
        return _stage(self.spec, self.quant)

    @property
    def model(self) -> LanguageModel:
        model = _model(self.spec, self.quant, self.backend, self.status.name, self.threads)
        self.artifact = str(model.facts().get("artifact", ""))
        return model

    @property
    def indices(self) -> list[int]:
        """Indices of the prompts to look at."""
        prompts = list(self.stage.golden.prompts)
        if self.extent.shortest:
            prompts.sort(key=lambda golden: golden.prompt_length)
        return [golden.index for golden in prompts[: self.extent.prompts]]

    def tokens(self) -> None:
        """Teacher-forced, free-running and distribution, as far as the extent goes."""
        results = []
        for result in self.stage.prompts(self.model, self.extent.new_tokens, self.indices):
            results.append(result)
            self._count(result.forced.headroom, result.forced.positions)
        self.notes["prompts"] = [prompt_data(result) for result in results]
        corpus = list(self.stage.corpus(self.model, self.extent.corpus))
        for piece in corpus:
            self._count(piece.headroom, piece.positions)
        distribution = self.stage.distribution(results, corpus)
        self._measure("kl_mean", distribution.kl_mean, "nat")
        self._measure("kl_p999", distribution.kl_p999, "nat")
        self._measure("logprob_error", max(result.forced.max_error for result in results), "nat")
        self._measure("same_top1", distribution.same_top1, "", "higher")
        self._measure("equal_tokens", sum(result.free.equal for result in results), "tokens", "higher")
        self._measure("certified_tokens", sum(result.free.certified for result in results), "tokens", "none")
        faults = [f"prompt {r.index} {r.prompt[:40]!r}: {fault}" for r in results for fault in r.failures]
        faults += [f"corpus: {piece.fault}" for piece in corpus if not piece.ok]
        if not distribution.ok:
            faults.append(f"the distribution is not the golden's: {distribution}")
        if self.extent.corpus != 0 and (cost := self.stage.cost(self.model, self.extent.corpus)):
            self._measure("cost_kl_mean", cost.kl_mean, "nat")
            self._measure("cost_same_top1", cost.same_top1, "", "higher")
            if not cost.ok:
                faults.append(f"against the fp32 golden: {cost}")
        failed = next((result for result in results if result.failures), None)
        if failed and self.native:
            faults += self.stage.locate(self.model, failed).splitlines()
        self.require(not faults, "tokens are not the golden's", "\n  ".join(faults))

    def residual_stream(self) -> None:
        """Error over bound after every layer, on one prompt; of a mode that rounds activations, of every module."""
        if self.stage.mode.rounds_activations:
            self._modules()
            return
        report = self.stage.layers(self.model, positions=self.extent.positions)
        self._count(report.headroom, len(report.layers))
        self.notes["layers"] = layers_data(report)
        self._measure("growth", report.growth, "exponent", "none")
        worst = max(report.layers, key=lambda layer: layer.headroom)
        self.require(
            not report.first_outside,
            "the residual stream leaves its bound",
            f"first    {report.first_outside}\n  worst    {worst.headroom:.2f} × its bound after {worst.name}, "
            f"relative error {worst.error:.1e}\n  growth   error ~ depth^{report.growth:.2f} (½ rounding, 1 bias)",
        )

    def _modules(self) -> None:
        report = self.stage.local(self.model, positions=self.extent.positions)
        self._count(report.worst.headroom, len(report.points))
        self.notes["modules"] = local_data(report)
        self.require(not report.first_outside, "a module leaves its bound on its own input", str(report.first_outside))

    def require(self, condition: bool, what: str, lines: str) -> None:
        """Raise :class:`Mismatch` with a report unless ``condition`` holds."""
        if not condition:
            backend = "" if self.backend == "anvil" else f" --backend {self.backend}"
            replay = f"pytest '{self.nodeid}'{backend}"
            raise Mismatch(f"{self.id}: {what}\n  {lines}\n  replay   {replay}")

    def facts(self, status: str, reason: str) -> dict[str, Any]:
        """What the record needs of this check."""
        key = CaseKey(self.id, "model", self.spec.name, self.status.name, quant=self.quant)
        return {
            "case": asdict(key),
            "status": status,
            "reason": reason,
            "executor": self.status.executor.replace("runner", "in-process"),
            "artifact": self.artifact,
            "examples": self.examples,
            "headroom": self.headroom,
            "ulps": None,
            "metrics": [asdict(metric) for metric in self.metrics],
            "notes": self.notes,
        }

    def _count(self, headroom: float, examples: int) -> None:
        self.headroom = max(self.headroom or 0.0, headroom)
        self.examples += examples

    def _measure(self, name: str, value: float, unit: str, direction: Any = "lower") -> None:
        self.metrics.append(Metric(name, float(value), unit, direction))


def model_checks(
    models: Mapping[str, ModelSpec], statuses: Mapping[str, TargetStatus], chosen: Selection
) -> Iterator[Case]:
    """Every model in every mode it has a golden for, on every target, as far as selected.

    Unless all is asked for, or the mode by name: lossy modes of small models only, on one native target, and a
    sample of large models. Streamed models take minutes each, and are checked by ``assay tokens``.
    """
    targets = chosen.targets(statuses)
    best = widest(statuses[target] for target in targets)
    wide = best.name if best else ""
    for spec in (spec for spec in models.values() if not spec.streamed):
        for quant in (mode for mode in spec.quants if not chosen.quants or mode in chosen.quants):
            for target in targets:
                small = spec.emulated_tokens and target == wide
                usual = quant == "fp32" or small or chosen.whole
                if usual and chosen.wants(Cell("model", spec.name, "f32", quant, "", target)):
                    status = statuses[target]
                    how = {"whole": chosen.whole, "thorough": chosen.thorough, "widest": target == wide}
                    yield spec, status, quant, extent(spec, status, **how, quant=quant)


@lru_cache(maxsize=2)
def _stage(spec: ModelSpec, quant: str) -> TokenStage:
    return TokenStage(spec, quant)


@lru_cache(maxsize=1)
def _model(spec: ModelSpec, quant: str, backend: str, target: str, threads: int) -> LanguageModel:
    return _stage(spec, quant).load(backends.load(backend), target, threads)

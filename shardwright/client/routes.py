"""The routes of the service, one method each. `make client` writes this file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Literal

from shardwright.client.call import Answer, Call, quoted
from shardwright.client.events import Event

if TYPE_CHECKING:  # the documents take longer to import than a command line may
    from shardwright.client import documents


class Routes:
    """The routes, synchronous."""

    def _send(self, call: Call[Answer]) -> Answer:
        raise NotImplementedError

    def _pages(self, call: Call[Any]) -> Iterator[Any]:
        raise NotImplementedError

    def _events(self, call: Call[Any]) -> Iterator[Event]:
        raise NotImplementedError

    def create_recommendation(
        self,
        body: documents.RecommendationRequest,
        *,
        view: Literal["full", "brief"] | None = None,
        idempotency_key: str | None = None,
    ) -> documents.RecommendationAnswer | documents.RecommendationBrief:
        """Recommend the fastest layout that fits with a probability of 0.9, or as the request asks,
        and the simplest one within the tolerance, with reasons, and the proof that the search
        missed none."""
        return self._send(
            Call(
                method="POST",
                path="/v1/recommendations",
                query={"view": view},
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_recommendations(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> Iterator[documents.RecommendationSummary]:
        """List recommendations, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/recommendations",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                },
            )
        )

    def list_recommendations_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """List recommendations, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/recommendations",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "view": "brief",
                },
            )
        )

    def list_recommendations_csv(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> str:
        """List recommendations, newest first."""
        return self._send(
            Call(
                method="GET",
                path="/v1/recommendations",
                query={
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "format": "csv",
                },
                accept="text/csv",
            )
        )

    def get_recommendation(
        self, id: str, *, view: Literal["full", "brief"] | None = None
    ) -> documents.RecommendationAnswer | documents.RecommendationBrief:
        """Show a recommendation as it was answered, or in brief."""
        return self._send(
            Call(method="GET", path=f"/v1/recommendations/{quoted(id)}", query={"view": view})
        )

    def get_recommendation_choices(self, id: str) -> documents.ChoiceList:
        """List the places that a recommendation compared, the best first, also as a table."""
        return self._send(Call(method="GET", path=f"/v1/recommendations/{quoted(id)}/choices"))

    def get_recommendation_choices_csv(self, id: str) -> str:
        """List the places that a recommendation compared, the best first, also as a table."""
        return self._send(
            Call(
                method="GET",
                path=f"/v1/recommendations/{quoted(id)}/choices",
                query={"format": "csv"},
                accept="text/csv",
            )
        )

    def get_recommendation_timeline(
        self,
        id: str,
        *,
        rank: int | None = None,
        micro_batches: int | None = None,
        choice: Literal["recommended", "fastest", "simplest", "bolder"] | None = None,
    ) -> documents.TimelineAnswer | documents.ChromeTrace:
        """Show the operations of each pipeline stage with their times, as JSON or as a trace for
        chrome://tracing and Perfetto."""
        return self._send(
            Call(
                method="GET",
                path=f"/v1/recommendations/{quoted(id)}/timeline",
                query={"rank": rank, "micro_batches": micro_batches, "choice": choice},
            )
        )

    def get_recommendation_launch(
        self,
        id: str,
        format: str,
        *,
        rank: int | None = None,
        choice: Literal["recommended", "fastest", "simplest", "bolder"] | None = None,
    ) -> documents.LaunchAnswer:
        """Write the launch configuration of a layout in the words of a framework: as JSON, or by
        the Accept header as a shell script, YAML or Python."""
        return self._send(
            Call(
                method="GET",
                path=f"/v1/recommendations/{quoted(id)}/launch/{quoted(format)}",
                query={"rank": rank, "choice": choice},
            )
        )

    def get_recommendation_launch_script(
        self,
        id: str,
        format: str,
        *,
        rank: int | None = None,
        choice: Literal["recommended", "fastest", "simplest", "bolder"] | None = None,
    ) -> str:
        """Write the launch configuration of a layout in the words of a framework: as JSON, or by
        the Accept header as a shell script, YAML or Python."""
        return self._send(
            Call(
                method="GET",
                path=f"/v1/recommendations/{quoted(id)}/launch/{quoted(format)}",
                query={"rank": rank, "choice": choice},
                accept="text/x-shellscript",
            )
        )

    def create_prediction(
        self,
        body: documents.PredictionRequest | documents.LaunchedPredictionRequest,
        *,
        view: Literal["full", "brief"] | None = None,
        idempotency_key: str | None = None,
    ) -> documents.PredictionAnswer | documents.PredictionBrief:
        """Predict step time, MFU, tokens/s and memory, term by term, of the layouts you name or of
        a launch configuration as typed."""
        return self._send(
            Call(
                method="POST",
                path="/v1/predictions",
                query={"view": view},
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_predictions(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> Iterator[documents.AnswerSummary]:
        """List predictions, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/predictions",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                },
            )
        )

    def list_predictions_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """List predictions, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/predictions",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "view": "brief",
                },
            )
        )

    def list_predictions_csv(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> str:
        """List predictions, newest first."""
        return self._send(
            Call(
                method="GET",
                path="/v1/predictions",
                query={
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "format": "csv",
                },
                accept="text/csv",
            )
        )

    def get_prediction(
        self, id: str, *, view: Literal["full", "brief"] | None = None
    ) -> documents.PredictionAnswer | documents.PredictionBrief:
        """Show a prediction as it was answered, or in brief."""
        return self._send(
            Call(method="GET", path=f"/v1/predictions/{quoted(id)}", query={"view": view})
        )

    def get_prediction_timeline(
        self, id: str, *, rank: int | None = None, micro_batches: int | None = None
    ) -> documents.TimelineAnswer | documents.ChromeTrace:
        """Show the operations of each pipeline stage with their times, as JSON or as a trace for
        chrome://tracing and Perfetto."""
        return self._send(
            Call(
                method="GET",
                path=f"/v1/predictions/{quoted(id)}/timeline",
                query={"rank": rank, "micro_batches": micro_batches},
            )
        )

    def get_prediction_launch(
        self, id: str, format: str, *, rank: int | None = None
    ) -> documents.LaunchAnswer:
        """Write the launch configuration of a layout in the words of a framework: as JSON, or by
        the Accept header as a shell script, YAML or Python."""
        return self._send(
            Call(
                method="GET",
                path=f"/v1/predictions/{quoted(id)}/launch/{quoted(format)}",
                query={"rank": rank},
            )
        )

    def get_prediction_launch_script(self, id: str, format: str, *, rank: int | None = None) -> str:
        """Write the launch configuration of a layout in the words of a framework: as JSON, or by
        the Accept header as a shell script, YAML or Python."""
        return self._send(
            Call(
                method="GET",
                path=f"/v1/predictions/{quoted(id)}/launch/{quoted(format)}",
                query={"rank": rank},
                accept="text/x-shellscript",
            )
        )

    def compare(
        self, body: documents.ComparisonRequest | documents.LaunchedComparisonRequest
    ) -> documents.ComparisonAnswer:
        """Compare two layouts, each given, read from a launch configuration, or the best under some
        constraints: where the difference of their times comes from, term by term."""
        return self._send(Call(method="POST", path="/v1/comparisons", body=body))

    def check(
        self,
        body: documents.CheckRequest | documents.LaunchedCheckRequest,
        *,
        view: Literal["full", "brief"] | None = None,
        idempotency_key: str | None = None,
    ) -> documents.CheckAnswer | documents.CheckBrief:
        """Check whether a job is worth submitting, by its layout or its launch configuration as
        typed: which rules it breaks, whether it fits, how fast it is, what would be faster, and
        what to change first."""
        return self._send(
            Call(
                method="POST",
                path="/v1/checks",
                query={"view": view},
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_checks(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> Iterator[documents.CheckSummary]:
        """List the stored checks, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/checks",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                },
            )
        )

    def list_checks_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """List the stored checks, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/checks",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "view": "brief",
                },
            )
        )

    def list_checks_csv(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> str:
        """List the stored checks, newest first."""
        return self._send(
            Call(
                method="GET",
                path="/v1/checks",
                query={
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "format": "csv",
                },
                accept="text/csv",
            )
        )

    def get_check(
        self, id: str, *, view: Literal["full", "brief"] | None = None
    ) -> documents.CheckAnswer | documents.CheckBrief:
        """Show a stored check as it was answered, or in brief."""
        return self._send(Call(method="GET", path=f"/v1/checks/{quoted(id)}", query={"view": view}))

    def explain(
        self, body: documents.ExplanationRequest | documents.LaunchedExplanationRequest
    ) -> documents.ExplanationAnswer:
        """Explain why a run was slow or died, by its report or its log: where the time goes, what
        makes the difference to the prediction, what the log shows, and what to try, with what it
        would gain."""
        return self._send(Call(method="POST", path="/v1/explanations", body=body))

    def draw_frontier(self, body: documents.FrontierRequest) -> documents.FrontierAnswer:
        """Say where a pipeline is needed: the best step time without and with one at every point of
        a grid of bandwidths, domain sizes, chips or layers, each by a search of its own, and where
        the gap crosses the tolerance; also as a table of the points."""
        return self._send(Call(method="POST", path="/v1/frontiers", body=body))

    def draw_frontier_csv(self, body: documents.FrontierRequest) -> str:
        """Say where a pipeline is needed: the best step time without and with one at every point of
        a grid of bandwidths, domain sizes, chips or layers, each by a search of its own, and where
        the gap crosses the tolerance; also as a table of the points."""
        return self._send(
            Call(
                method="POST",
                path="/v1/frontiers",
                query={"format": "csv"},
                body=body,
                accept="text/csv",
            )
        )

    def create_report(
        self,
        body: documents.ReportSubmission | documents.LaunchedReport | documents.ReportBatch,
        *,
        idempotency_key: str | None = None,
    ) -> documents.ReportAnswer | documents.BatchAnswer:
        """Store what a run measured beside what the active profile predicts of it, for one report
        or many."""
        return self._send(
            Call(
                method="POST",
                path="/v1/reports",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_reports(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
        architecture: list[str] | None = None,
        family: list[str] | None = None,
        outcome: list[Literal["ok", "out_of_memory", "crashed", "aborted"]] | None = None,
        source: list[str] | None = None,
        num_chips: list[int] | None = None,
        flagged: bool | None = None,
        within_interval: bool | None = None,
        profile_version: int | None = None,
        created_since: str | None = None,
        label: list[str] | None = None,
        include_withdrawn: bool | None = None,
    ) -> Iterator[documents.ReportAnswer]:
        """List reports, newest first, in pages, in full or in brief, or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/reports",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "chip": chip,
                    "stack": stack,
                    "architecture": architecture,
                    "family": family,
                    "outcome": outcome,
                    "source": source,
                    "num_chips": num_chips,
                    "flagged": flagged,
                    "within_interval": within_interval,
                    "profile_version": profile_version,
                    "created_since": created_since,
                    "label": label,
                    "include_withdrawn": include_withdrawn,
                },
            )
        )

    def list_reports_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
        architecture: list[str] | None = None,
        family: list[str] | None = None,
        outcome: list[Literal["ok", "out_of_memory", "crashed", "aborted"]] | None = None,
        source: list[str] | None = None,
        num_chips: list[int] | None = None,
        flagged: bool | None = None,
        within_interval: bool | None = None,
        profile_version: int | None = None,
        created_since: str | None = None,
        label: list[str] | None = None,
        include_withdrawn: bool | None = None,
    ) -> Iterator[dict[str, Any]]:
        """List reports, newest first, in pages, in full or in brief, or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/reports",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "chip": chip,
                    "stack": stack,
                    "architecture": architecture,
                    "family": family,
                    "outcome": outcome,
                    "source": source,
                    "num_chips": num_chips,
                    "flagged": flagged,
                    "within_interval": within_interval,
                    "profile_version": profile_version,
                    "created_since": created_since,
                    "label": label,
                    "include_withdrawn": include_withdrawn,
                    "view": "brief",
                },
            )
        )

    def list_reports_csv(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
        architecture: list[str] | None = None,
        family: list[str] | None = None,
        outcome: list[Literal["ok", "out_of_memory", "crashed", "aborted"]] | None = None,
        source: list[str] | None = None,
        num_chips: list[int] | None = None,
        flagged: bool | None = None,
        within_interval: bool | None = None,
        profile_version: int | None = None,
        created_since: str | None = None,
        label: list[str] | None = None,
        include_withdrawn: bool | None = None,
    ) -> str:
        """List reports, newest first, in pages, in full or in brief, or all as CSV."""
        return self._send(
            Call(
                method="GET",
                path="/v1/reports",
                query={
                    "since": since,
                    "until": until,
                    "chip": chip,
                    "stack": stack,
                    "architecture": architecture,
                    "family": family,
                    "outcome": outcome,
                    "source": source,
                    "num_chips": num_chips,
                    "flagged": flagged,
                    "within_interval": within_interval,
                    "profile_version": profile_version,
                    "created_since": created_since,
                    "label": label,
                    "include_withdrawn": include_withdrawn,
                    "format": "csv",
                },
                accept="text/csv",
            )
        )

    def create_report_from_log(
        self,
        body: documents.LogSubmission | documents.LaunchedLog,
        *,
        idempotency_key: str | None = None,
    ) -> documents.LogAnswer:
        """Read a training log of Megatron-LM, NeMo, torchtitan or MaxText into a report."""
        return self._send(
            Call(
                method="POST",
                path="/v1/reports/logs",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def summarise_reports(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
        architecture: list[str] | None = None,
        family: list[str] | None = None,
        outcome: list[Literal["ok", "out_of_memory", "crashed", "aborted"]] | None = None,
        source: list[str] | None = None,
        num_chips: list[int] | None = None,
        flagged: bool | None = None,
        within_interval: bool | None = None,
        profile_version: int | None = None,
        created_since: str | None = None,
        label: list[str] | None = None,
        by: str | None = None,
        bucket: Literal["hour", "day", "week", "month"] | None = None,
    ) -> documents.ReportSummary:
        """Summarise residuals by chip, stack, model family, profile version, week, source and
        tenant, and by several of them together over time (`by`, `bucket`)."""
        return self._send(
            Call(
                method="GET",
                path="/v1/reports/summary",
                query={
                    "since": since,
                    "until": until,
                    "chip": chip,
                    "stack": stack,
                    "architecture": architecture,
                    "family": family,
                    "outcome": outcome,
                    "source": source,
                    "num_chips": num_chips,
                    "flagged": flagged,
                    "within_interval": within_interval,
                    "profile_version": profile_version,
                    "created_since": created_since,
                    "label": label,
                    "by": by,
                    "bucket": bucket,
                },
            )
        )

    def watch_reports(self) -> Iterator[Event]:
        """Send an event `report` with each report as it comes."""
        return self._events(
            Call(method="GET", path="/v1/reports/events", accept="text/event-stream")
        )

    def get_report(self, id: str) -> documents.StoredReport:
        """Show a report, and the submission as it was received."""
        return self._send(Call(method="GET", path=f"/v1/reports/{quoted(id)}"))

    def withdraw_report(self, id: str, *, if_match: str | None = None) -> documents.ReportAnswer:
        """Withdraw a report that should not count: it is kept as it was received, and from now on
        no calibration, drift, summary or prediction looks at it."""
        return self._send(
            Call(method="DELETE", path=f"/v1/reports/{quoted(id)}", headers={"if-match": if_match})
        )

    def create_benchmark(
        self, body: documents.BenchmarkSubmission, *, idempotency_key: str | None = None
    ) -> documents.BenchmarkAnswer:
        """Store what collectives or matrix products achieve on a cluster: nccl-tests output as it
        is, or a table of products."""
        return self._send(
            Call(
                method="POST",
                path="/v1/benchmarks",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_benchmarks(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        include_withdrawn: bool | None = None,
    ) -> Iterator[documents.BenchmarkSummary]:
        """List the stored benchmarks, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/benchmarks",
                query={"fields": fields, "limit": limit, "include_withdrawn": include_withdrawn},
            )
        )

    def list_benchmarks_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        include_withdrawn: bool | None = None,
    ) -> Iterator[dict[str, Any]]:
        """List the stored benchmarks, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/benchmarks",
                query={
                    "fields": fields,
                    "limit": limit,
                    "include_withdrawn": include_withdrawn,
                    "view": "brief",
                },
            )
        )

    def list_benchmarks_csv(self, *, include_withdrawn: bool | None = None) -> str:
        """List the stored benchmarks, newest first."""
        return self._send(
            Call(
                method="GET",
                path="/v1/benchmarks",
                query={"include_withdrawn": include_withdrawn, "format": "csv"},
                accept="text/csv",
            )
        )

    def get_benchmark(self, id: str) -> documents.StoredBenchmark:
        """Show a benchmark, and the submission as it was received."""
        return self._send(Call(method="GET", path=f"/v1/benchmarks/{quoted(id)}"))

    def withdraw_benchmark(
        self, id: str, *, if_match: str | None = None
    ) -> documents.BenchmarkAnswer:
        """Withdraw a benchmark that should not count: it is kept as it was received, and from now
        on no calibration looks at it."""
        return self._send(
            Call(
                method="DELETE", path=f"/v1/benchmarks/{quoted(id)}", headers={"if-match": if_match}
            )
        )

    def list_profiles(self, *, fields: str | None = None) -> Iterator[documents.ProfileAnswer]:
        """List the profile that all share and the caller's own, each with its versions."""
        return self._pages(Call(method="GET", path="/v1/profiles", query={"fields": fields}))

    def list_profiles_brief(self, *, fields: str | None = None) -> Iterator[dict[str, Any]]:
        """List the profile that all share and the caller's own, each with its versions."""
        return self._pages(
            Call(method="GET", path="/v1/profiles", query={"fields": fields, "view": "brief"})
        )

    def list_profiles_csv(self) -> str:
        """List the profile that all share and the caller's own, each with its versions."""
        return self._send(
            Call(method="GET", path="/v1/profiles", query={"format": "csv"}, accept="text/csv")
        )

    def get_profile(self, id: str) -> documents.ProfileAnswer:
        """Show a profile."""
        return self._send(Call(method="GET", path=f"/v1/profiles/{quoted(id)}"))

    def list_profile_versions(
        self, id: str, *, fields: str | None = None, limit: int | None = None
    ) -> Iterator[documents.ListedVersion]:
        """List the versions of a profile, newest first, each with the errors of the calibration
        that made it, in pages, in full or in brief, or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/profiles/{quoted(id)}/versions",
                query={"fields": fields, "limit": limit},
            )
        )

    def list_profile_versions_brief(
        self, id: str, *, fields: str | None = None, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """List the versions of a profile, newest first, each with the errors of the calibration
        that made it, in pages, in full or in brief, or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/profiles/{quoted(id)}/versions",
                query={"fields": fields, "limit": limit, "view": "brief"},
            )
        )

    def list_profile_versions_csv(self, id: str) -> str:
        """List the versions of a profile, newest first, each with the errors of the calibration
        that made it, in pages, in full or in brief, or all as CSV."""
        return self._send(
            Call(
                method="GET",
                path=f"/v1/profiles/{quoted(id)}/versions",
                query={"format": "csv"},
                accept="text/csv",
            )
        )

    def get_profile_version(self, id: str, version: int) -> documents.ProfileVersionAnswer:
        """Show the coefficients of a version and, where reports made it, what they moved."""
        return self._send(
            Call(method="GET", path=f"/v1/profiles/{quoted(id)}/versions/{quoted(version)}")
        )

    def create_calibration(
        self,
        id: str,
        body: documents.CalibrationRequest | None,
        *,
        idempotency_key: str | None = None,
    ) -> documents.ProfileVersionAnswer:
        """Learn a new version from the reports and benchmarks that the active one has not
        learnt."""
        return self._send(
            Call(
                method="POST",
                path=f"/v1/profiles/{quoted(id)}/calibrations",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def activate_profile_version(
        self, id: str, version: int, if_match: str
    ) -> documents.ProfileAnswer:
        """Make predictions use this version."""
        return self._send(
            Call(
                method="POST",
                path=f"/v1/profiles/{quoted(id)}/versions/{quoted(version)}/activate",
                headers={"if-match": if_match},
            )
        )

    def deactivate_profile(self, id: str, if_match: str) -> documents.ProfileAnswer:
        """Make the tenant's predictions use the version that all share again, and set the mode of
        its own policy to "manual"."""
        return self._send(
            Call(
                method="POST",
                path=f"/v1/profiles/{quoted(id)}/deactivate",
                headers={"if-match": if_match},
            )
        )

    def set_profile_policy(
        self, id: str, if_match: str, body: documents.Policy
    ) -> documents.ProfileAnswer:
        """Say who activates the versions that calibrations make."""
        return self._send(
            Call(
                method="PUT",
                path=f"/v1/profiles/{quoted(id)}/policy",
                headers={"if-match": if_match},
                body=body,
            )
        )

    def get_profile_drift(
        self,
        id: str,
        *,
        since: str | None = None,
        until: str | None = None,
        version: int | None = None,
        limit: int | None = None,
    ) -> documents.DriftAnswer:
        """Say whether runs of a chip, fabric, stack and model family have become slower or faster,
        and since when."""
        return self._send(
            Call(
                method="GET",
                path=f"/v1/profiles/{quoted(id)}/drift",
                query={"since": since, "until": until, "version": version, "limit": limit},
            )
        )

    def replay_profile_version(
        self, id: str, version: int, body: documents.ReplayRequest | None
    ) -> documents.ReplayAnswer:
        """Replay earlier questions and reports under this version, and say what would change."""
        return self._send(
            Call(
                method="POST",
                path=f"/v1/profiles/{quoted(id)}/versions/{quoted(version)}/replay",
                body=body,
            )
        )

    def list_evidence(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        recommendation_id: str | None = None,
        prediction_id: str | None = None,
        rank: int | None = None,
        model: str | None = None,
        cluster: str | None = None,
        num_chips: int | None = None,
        seq_len: int | None = None,
        global_batch: int | None = None,
        precision: Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"] | None = None,
        stack: str | None = None,
        exact: bool | None = None,
        text: str | None = None,
        family: str | None = None,
        outcome: Literal["ok", "out_of_memory"] | None = None,
    ) -> documents.EvidenceList:
        """List the published runs nearest to an answer given before, or to a model, cluster and
        workload, each beside what the active profile predicts of it; in pages, in full or in brief,
        or all as CSV."""
        return self._send(
            Call(
                method="GET",
                path="/v1/evidence",
                query={
                    "fields": fields,
                    "limit": limit,
                    "recommendation_id": recommendation_id,
                    "prediction_id": prediction_id,
                    "rank": rank,
                    "model": model,
                    "cluster": cluster,
                    "num_chips": num_chips,
                    "seq_len": seq_len,
                    "global_batch": global_batch,
                    "precision": precision,
                    "stack": stack,
                    "exact": exact,
                    "text": text,
                    "family": family,
                    "outcome": outcome,
                },
            )
        )

    def list_evidence_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        recommendation_id: str | None = None,
        prediction_id: str | None = None,
        rank: int | None = None,
        model: str | None = None,
        cluster: str | None = None,
        num_chips: int | None = None,
        seq_len: int | None = None,
        global_batch: int | None = None,
        precision: Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"] | None = None,
        stack: str | None = None,
        exact: bool | None = None,
        text: str | None = None,
        family: str | None = None,
        outcome: Literal["ok", "out_of_memory"] | None = None,
    ) -> documents.BriefPage:
        """List the published runs nearest to an answer given before, or to a model, cluster and
        workload, each beside what the active profile predicts of it; in pages, in full or in brief,
        or all as CSV."""
        return self._send(
            Call(
                method="GET",
                path="/v1/evidence",
                query={
                    "fields": fields,
                    "limit": limit,
                    "recommendation_id": recommendation_id,
                    "prediction_id": prediction_id,
                    "rank": rank,
                    "model": model,
                    "cluster": cluster,
                    "num_chips": num_chips,
                    "seq_len": seq_len,
                    "global_batch": global_batch,
                    "precision": precision,
                    "stack": stack,
                    "exact": exact,
                    "text": text,
                    "family": family,
                    "outcome": outcome,
                    "view": "brief",
                },
            )
        )

    def list_evidence_csv(
        self,
        *,
        recommendation_id: str | None = None,
        prediction_id: str | None = None,
        rank: int | None = None,
        model: str | None = None,
        cluster: str | None = None,
        num_chips: int | None = None,
        seq_len: int | None = None,
        global_batch: int | None = None,
        precision: Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"] | None = None,
        stack: str | None = None,
        exact: bool | None = None,
        text: str | None = None,
        family: str | None = None,
        outcome: Literal["ok", "out_of_memory"] | None = None,
    ) -> str:
        """List the published runs nearest to an answer given before, or to a model, cluster and
        workload, each beside what the active profile predicts of it; in pages, in full or in brief,
        or all as CSV."""
        return self._send(
            Call(
                method="GET",
                path="/v1/evidence",
                query={
                    "recommendation_id": recommendation_id,
                    "prediction_id": prediction_id,
                    "rank": rank,
                    "model": model,
                    "cluster": cluster,
                    "num_chips": num_chips,
                    "seq_len": seq_len,
                    "global_batch": global_batch,
                    "precision": precision,
                    "stack": stack,
                    "exact": exact,
                    "text": text,
                    "family": family,
                    "outcome": outcome,
                    "format": "csv",
                },
                accept="text/csv",
            )
        )

    def list_catalog(
        self,
        kind: Literal["chips", "clusters", "architectures", "stacks"],
        *,
        fields: str | None = None,
        limit: int | None = None,
    ) -> Iterator[documents.CatalogEntry]:
        """List shipped and registered entries by name."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/catalog/{quoted(kind)}",
                query={"fields": fields, "limit": limit},
            )
        )

    def list_catalog_brief(
        self,
        kind: Literal["chips", "clusters", "architectures", "stacks"],
        *,
        fields: str | None = None,
        limit: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """List shipped and registered entries by name."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/catalog/{quoted(kind)}",
                query={"fields": fields, "limit": limit, "view": "brief"},
            )
        )

    def list_catalog_csv(
        self, kind: Literal["chips", "clusters", "architectures", "stacks"]
    ) -> str:
        """List shipped and registered entries by name."""
        return self._send(
            Call(
                method="GET",
                path=f"/v1/catalog/{quoted(kind)}",
                query={"format": "csv"},
                accept="text/csv",
            )
        )

    def get_catalog_entry(
        self, kind: Literal["chips", "clusters", "architectures", "stacks"], name: str
    ) -> documents.CatalogEntry:
        """Show an entry by name or alias."""
        return self._send(Call(method="GET", path=f"/v1/catalog/{quoted(kind)}/{quoted(name)}"))

    def register_chip(
        self, body: documents.ChipEntry, *, idempotency_key: str | None = None
    ) -> documents.CatalogEntry:
        """Register a chip, or a new version of one."""
        return self._send(
            Call(
                method="POST",
                path="/v1/catalog/chips",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def register_cluster(
        self, body: documents.ClusterEntry, *, idempotency_key: str | None = None
    ) -> documents.CatalogEntry:
        """Register a cluster, or a new version of one."""
        return self._send(
            Call(
                method="POST",
                path="/v1/catalog/clusters",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def register_architecture(
        self, body: documents.ArchitectureEntry, *, idempotency_key: str | None = None
    ) -> documents.CatalogEntry:
        """Register an architecture, or a new version of one."""
        return self._send(
            Call(
                method="POST",
                path="/v1/catalog/architectures",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_audit(
        self, *, fields: str | None = None, limit: int | None = None
    ) -> Iterator[documents.AuditEntry]:
        """List who made, rotated and revoked keys, activated versions, set policies and withdrew
        reports, newest first."""
        return self._pages(
            Call(method="GET", path="/v1/audit", query={"fields": fields, "limit": limit})
        )

    def list_audit_brief(
        self, *, fields: str | None = None, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """List who made, rotated and revoked keys, activated versions, set policies and withdrew
        reports, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/audit",
                query={"fields": fields, "limit": limit, "view": "brief"},
            )
        )

    def list_audit_csv(self) -> str:
        """List who made, rotated and revoked keys, activated versions, set policies and withdrew
        reports, newest first."""
        return self._send(
            Call(method="GET", path="/v1/audit", query={"format": "csv"}, accept="text/csv")
        )

    def create_sweep(
        self, body: documents.SweepRequest, *, idempotency_key: str | None = None
    ) -> documents.SweepDetails:
        """Recommend a layout for every combination of the models, clusters, workloads, stacks and
        constraints that you list, as one job."""
        return self._send(
            Call(
                method="POST",
                path="/v1/sweeps",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_sweeps(
        self, *, fields: str | None = None, limit: int | None = None
    ) -> Iterator[documents.SweepAnswer]:
        """List sweeps, newest first."""
        return self._pages(
            Call(method="GET", path="/v1/sweeps", query={"fields": fields, "limit": limit})
        )

    def list_sweeps_brief(
        self, *, fields: str | None = None, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """List sweeps, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/sweeps",
                query={"fields": fields, "limit": limit, "view": "brief"},
            )
        )

    def list_sweeps_csv(self) -> str:
        """List sweeps, newest first."""
        return self._send(
            Call(method="GET", path="/v1/sweeps", query={"format": "csv"}, accept="text/csv")
        )

    def get_sweep(self, id: str) -> documents.SweepDetails:
        """Show the progress of a sweep, and the request that it answers."""
        return self._send(Call(method="GET", path=f"/v1/sweeps/{quoted(id)}"))

    def remove_sweep(self, id: str) -> None:
        """Cancel a sweep and remove it with its results."""
        self._send(Call(method="DELETE", path=f"/v1/sweeps/{quoted(id)}"))

    def list_sweep_items(
        self,
        id: str,
        *,
        fields: str | None = None,
        limit: int | None = None,
        outcome: Literal["waiting", "ok", "infeasible", "refused", "failed", "cancelled"]
        | None = None,
    ) -> Iterator[documents.SweepItem]:
        """List the items of a sweep in order, those that are finished with their results, in pages
        or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/sweeps/{quoted(id)}/items",
                query={"fields": fields, "limit": limit, "outcome": outcome},
            )
        )

    def list_sweep_items_brief(
        self,
        id: str,
        *,
        fields: str | None = None,
        limit: int | None = None,
        outcome: Literal["waiting", "ok", "infeasible", "refused", "failed", "cancelled"]
        | None = None,
    ) -> Iterator[dict[str, Any]]:
        """List the items of a sweep in order, those that are finished with their results, in pages
        or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/sweeps/{quoted(id)}/items",
                query={"fields": fields, "limit": limit, "outcome": outcome, "view": "brief"},
            )
        )

    def list_sweep_items_csv(
        self,
        id: str,
        *,
        outcome: Literal["waiting", "ok", "infeasible", "refused", "failed", "cancelled"]
        | None = None,
    ) -> str:
        """List the items of a sweep in order, those that are finished with their results, in pages
        or all as CSV."""
        return self._send(
            Call(
                method="GET",
                path=f"/v1/sweeps/{quoted(id)}/items",
                query={"outcome": outcome, "format": "csv"},
                accept="text/csv",
            )
        )

    def watch_sweep(self, id: str) -> Iterator[Event]:
        """Send an event `item` with each result as it comes, `progress`, and `end`."""
        return self._events(
            Call(method="GET", path=f"/v1/sweeps/{quoted(id)}/events", accept="text/event-stream")
        )

    def cancel_sweep(self, id: str) -> documents.SweepDetails:
        """Cancel the items that are not finished."""
        return self._send(Call(method="POST", path=f"/v1/sweeps/{quoted(id)}/cancel"))

    def retry_sweep(self, id: str) -> documents.SweepDetails:
        """Compute the items again that failed or were cancelled."""
        return self._send(Call(method="POST", path=f"/v1/sweeps/{quoted(id)}/retry"))

    def create_stream_ticket(self, body: documents.TicketRequest) -> documents.TicketAnswer:
        """Make a URL that opens an event stream within a minute, for browsers, which cannot send a
        key with an EventSource."""
        return self._send(Call(method="POST", path="/v1/stream-tickets", body=body))

    def live(self) -> dict[str, Any]:
        """Answer while the process runs."""
        return self._send(Call(method="GET", path="/livez"))

    def ready(self) -> Any:
        """Answer whether requests can be served: the database answers, is migrated and takes
        writes, and the cost model is compiled."""
        return self._send(Call(method="GET", path="/readyz"))


class AsyncRoutes:
    """The routes, asynchronous."""

    async def _send(self, call: Call[Answer]) -> Answer:
        raise NotImplementedError

    def _pages(self, call: Call[Any]) -> AsyncIterator[Any]:
        raise NotImplementedError

    def _events(self, call: Call[Any]) -> AsyncIterator[Event]:
        raise NotImplementedError

    async def create_recommendation(
        self,
        body: documents.RecommendationRequest,
        *,
        view: Literal["full", "brief"] | None = None,
        idempotency_key: str | None = None,
    ) -> documents.RecommendationAnswer | documents.RecommendationBrief:
        """Recommend the fastest layout that fits with a probability of 0.9, or as the request asks,
        and the simplest one within the tolerance, with reasons, and the proof that the search
        missed none."""
        return await self._send(
            Call(
                method="POST",
                path="/v1/recommendations",
                query={"view": view},
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_recommendations(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> AsyncIterator[documents.RecommendationSummary]:
        """List recommendations, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/recommendations",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                },
            )
        )

    def list_recommendations_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """List recommendations, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/recommendations",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "view": "brief",
                },
            )
        )

    async def list_recommendations_csv(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> str:
        """List recommendations, newest first."""
        return await self._send(
            Call(
                method="GET",
                path="/v1/recommendations",
                query={
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "format": "csv",
                },
                accept="text/csv",
            )
        )

    async def get_recommendation(
        self, id: str, *, view: Literal["full", "brief"] | None = None
    ) -> documents.RecommendationAnswer | documents.RecommendationBrief:
        """Show a recommendation as it was answered, or in brief."""
        return await self._send(
            Call(method="GET", path=f"/v1/recommendations/{quoted(id)}", query={"view": view})
        )

    async def get_recommendation_choices(self, id: str) -> documents.ChoiceList:
        """List the places that a recommendation compared, the best first, also as a table."""
        return await self._send(
            Call(method="GET", path=f"/v1/recommendations/{quoted(id)}/choices")
        )

    async def get_recommendation_choices_csv(self, id: str) -> str:
        """List the places that a recommendation compared, the best first, also as a table."""
        return await self._send(
            Call(
                method="GET",
                path=f"/v1/recommendations/{quoted(id)}/choices",
                query={"format": "csv"},
                accept="text/csv",
            )
        )

    async def get_recommendation_timeline(
        self,
        id: str,
        *,
        rank: int | None = None,
        micro_batches: int | None = None,
        choice: Literal["recommended", "fastest", "simplest", "bolder"] | None = None,
    ) -> documents.TimelineAnswer | documents.ChromeTrace:
        """Show the operations of each pipeline stage with their times, as JSON or as a trace for
        chrome://tracing and Perfetto."""
        return await self._send(
            Call(
                method="GET",
                path=f"/v1/recommendations/{quoted(id)}/timeline",
                query={"rank": rank, "micro_batches": micro_batches, "choice": choice},
            )
        )

    async def get_recommendation_launch(
        self,
        id: str,
        format: str,
        *,
        rank: int | None = None,
        choice: Literal["recommended", "fastest", "simplest", "bolder"] | None = None,
    ) -> documents.LaunchAnswer:
        """Write the launch configuration of a layout in the words of a framework: as JSON, or by
        the Accept header as a shell script, YAML or Python."""
        return await self._send(
            Call(
                method="GET",
                path=f"/v1/recommendations/{quoted(id)}/launch/{quoted(format)}",
                query={"rank": rank, "choice": choice},
            )
        )

    async def get_recommendation_launch_script(
        self,
        id: str,
        format: str,
        *,
        rank: int | None = None,
        choice: Literal["recommended", "fastest", "simplest", "bolder"] | None = None,
    ) -> str:
        """Write the launch configuration of a layout in the words of a framework: as JSON, or by
        the Accept header as a shell script, YAML or Python."""
        return await self._send(
            Call(
                method="GET",
                path=f"/v1/recommendations/{quoted(id)}/launch/{quoted(format)}",
                query={"rank": rank, "choice": choice},
                accept="text/x-shellscript",
            )
        )

    async def create_prediction(
        self,
        body: documents.PredictionRequest | documents.LaunchedPredictionRequest,
        *,
        view: Literal["full", "brief"] | None = None,
        idempotency_key: str | None = None,
    ) -> documents.PredictionAnswer | documents.PredictionBrief:
        """Predict step time, MFU, tokens/s and memory, term by term, of the layouts you name or of
        a launch configuration as typed."""
        return await self._send(
            Call(
                method="POST",
                path="/v1/predictions",
                query={"view": view},
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_predictions(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> AsyncIterator[documents.AnswerSummary]:
        """List predictions, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/predictions",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                },
            )
        )

    def list_predictions_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """List predictions, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/predictions",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "view": "brief",
                },
            )
        )

    async def list_predictions_csv(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> str:
        """List predictions, newest first."""
        return await self._send(
            Call(
                method="GET",
                path="/v1/predictions",
                query={
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "format": "csv",
                },
                accept="text/csv",
            )
        )

    async def get_prediction(
        self, id: str, *, view: Literal["full", "brief"] | None = None
    ) -> documents.PredictionAnswer | documents.PredictionBrief:
        """Show a prediction as it was answered, or in brief."""
        return await self._send(
            Call(method="GET", path=f"/v1/predictions/{quoted(id)}", query={"view": view})
        )

    async def get_prediction_timeline(
        self, id: str, *, rank: int | None = None, micro_batches: int | None = None
    ) -> documents.TimelineAnswer | documents.ChromeTrace:
        """Show the operations of each pipeline stage with their times, as JSON or as a trace for
        chrome://tracing and Perfetto."""
        return await self._send(
            Call(
                method="GET",
                path=f"/v1/predictions/{quoted(id)}/timeline",
                query={"rank": rank, "micro_batches": micro_batches},
            )
        )

    async def get_prediction_launch(
        self, id: str, format: str, *, rank: int | None = None
    ) -> documents.LaunchAnswer:
        """Write the launch configuration of a layout in the words of a framework: as JSON, or by
        the Accept header as a shell script, YAML or Python."""
        return await self._send(
            Call(
                method="GET",
                path=f"/v1/predictions/{quoted(id)}/launch/{quoted(format)}",
                query={"rank": rank},
            )
        )

    async def get_prediction_launch_script(
        self, id: str, format: str, *, rank: int | None = None
    ) -> str:
        """Write the launch configuration of a layout in the words of a framework: as JSON, or by
        the Accept header as a shell script, YAML or Python."""
        return await self._send(
            Call(
                method="GET",
                path=f"/v1/predictions/{quoted(id)}/launch/{quoted(format)}",
                query={"rank": rank},
                accept="text/x-shellscript",
            )
        )

    async def compare(
        self, body: documents.ComparisonRequest | documents.LaunchedComparisonRequest
    ) -> documents.ComparisonAnswer:
        """Compare two layouts, each given, read from a launch configuration, or the best under some
        constraints: where the difference of their times comes from, term by term."""
        return await self._send(Call(method="POST", path="/v1/comparisons", body=body))

    async def check(
        self,
        body: documents.CheckRequest | documents.LaunchedCheckRequest,
        *,
        view: Literal["full", "brief"] | None = None,
        idempotency_key: str | None = None,
    ) -> documents.CheckAnswer | documents.CheckBrief:
        """Check whether a job is worth submitting, by its layout or its launch configuration as
        typed: which rules it breaks, whether it fits, how fast it is, what would be faster, and
        what to change first."""
        return await self._send(
            Call(
                method="POST",
                path="/v1/checks",
                query={"view": view},
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_checks(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> AsyncIterator[documents.CheckSummary]:
        """List the stored checks, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/checks",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                },
            )
        )

    def list_checks_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """List the stored checks, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/checks",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "view": "brief",
                },
            )
        )

    async def list_checks_csv(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        model: list[str] | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
    ) -> str:
        """List the stored checks, newest first."""
        return await self._send(
            Call(
                method="GET",
                path="/v1/checks",
                query={
                    "since": since,
                    "until": until,
                    "model": model,
                    "chip": chip,
                    "stack": stack,
                    "format": "csv",
                },
                accept="text/csv",
            )
        )

    async def get_check(
        self, id: str, *, view: Literal["full", "brief"] | None = None
    ) -> documents.CheckAnswer | documents.CheckBrief:
        """Show a stored check as it was answered, or in brief."""
        return await self._send(
            Call(method="GET", path=f"/v1/checks/{quoted(id)}", query={"view": view})
        )

    async def explain(
        self, body: documents.ExplanationRequest | documents.LaunchedExplanationRequest
    ) -> documents.ExplanationAnswer:
        """Explain why a run was slow or died, by its report or its log: where the time goes, what
        makes the difference to the prediction, what the log shows, and what to try, with what it
        would gain."""
        return await self._send(Call(method="POST", path="/v1/explanations", body=body))

    async def draw_frontier(self, body: documents.FrontierRequest) -> documents.FrontierAnswer:
        """Say where a pipeline is needed: the best step time without and with one at every point of
        a grid of bandwidths, domain sizes, chips or layers, each by a search of its own, and where
        the gap crosses the tolerance; also as a table of the points."""
        return await self._send(Call(method="POST", path="/v1/frontiers", body=body))

    async def draw_frontier_csv(self, body: documents.FrontierRequest) -> str:
        """Say where a pipeline is needed: the best step time without and with one at every point of
        a grid of bandwidths, domain sizes, chips or layers, each by a search of its own, and where
        the gap crosses the tolerance; also as a table of the points."""
        return await self._send(
            Call(
                method="POST",
                path="/v1/frontiers",
                query={"format": "csv"},
                body=body,
                accept="text/csv",
            )
        )

    async def create_report(
        self,
        body: documents.ReportSubmission | documents.LaunchedReport | documents.ReportBatch,
        *,
        idempotency_key: str | None = None,
    ) -> documents.ReportAnswer | documents.BatchAnswer:
        """Store what a run measured beside what the active profile predicts of it, for one report
        or many."""
        return await self._send(
            Call(
                method="POST",
                path="/v1/reports",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_reports(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
        architecture: list[str] | None = None,
        family: list[str] | None = None,
        outcome: list[Literal["ok", "out_of_memory", "crashed", "aborted"]] | None = None,
        source: list[str] | None = None,
        num_chips: list[int] | None = None,
        flagged: bool | None = None,
        within_interval: bool | None = None,
        profile_version: int | None = None,
        created_since: str | None = None,
        label: list[str] | None = None,
        include_withdrawn: bool | None = None,
    ) -> AsyncIterator[documents.ReportAnswer]:
        """List reports, newest first, in pages, in full or in brief, or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/reports",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "chip": chip,
                    "stack": stack,
                    "architecture": architecture,
                    "family": family,
                    "outcome": outcome,
                    "source": source,
                    "num_chips": num_chips,
                    "flagged": flagged,
                    "within_interval": within_interval,
                    "profile_version": profile_version,
                    "created_since": created_since,
                    "label": label,
                    "include_withdrawn": include_withdrawn,
                },
            )
        )

    def list_reports_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
        architecture: list[str] | None = None,
        family: list[str] | None = None,
        outcome: list[Literal["ok", "out_of_memory", "crashed", "aborted"]] | None = None,
        source: list[str] | None = None,
        num_chips: list[int] | None = None,
        flagged: bool | None = None,
        within_interval: bool | None = None,
        profile_version: int | None = None,
        created_since: str | None = None,
        label: list[str] | None = None,
        include_withdrawn: bool | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """List reports, newest first, in pages, in full or in brief, or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/reports",
                query={
                    "fields": fields,
                    "limit": limit,
                    "since": since,
                    "until": until,
                    "chip": chip,
                    "stack": stack,
                    "architecture": architecture,
                    "family": family,
                    "outcome": outcome,
                    "source": source,
                    "num_chips": num_chips,
                    "flagged": flagged,
                    "within_interval": within_interval,
                    "profile_version": profile_version,
                    "created_since": created_since,
                    "label": label,
                    "include_withdrawn": include_withdrawn,
                    "view": "brief",
                },
            )
        )

    async def list_reports_csv(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
        architecture: list[str] | None = None,
        family: list[str] | None = None,
        outcome: list[Literal["ok", "out_of_memory", "crashed", "aborted"]] | None = None,
        source: list[str] | None = None,
        num_chips: list[int] | None = None,
        flagged: bool | None = None,
        within_interval: bool | None = None,
        profile_version: int | None = None,
        created_since: str | None = None,
        label: list[str] | None = None,
        include_withdrawn: bool | None = None,
    ) -> str:
        """List reports, newest first, in pages, in full or in brief, or all as CSV."""
        return await self._send(
            Call(
                method="GET",
                path="/v1/reports",
                query={
                    "since": since,
                    "until": until,
                    "chip": chip,
                    "stack": stack,
                    "architecture": architecture,
                    "family": family,
                    "outcome": outcome,
                    "source": source,
                    "num_chips": num_chips,
                    "flagged": flagged,
                    "within_interval": within_interval,
                    "profile_version": profile_version,
                    "created_since": created_since,
                    "label": label,
                    "include_withdrawn": include_withdrawn,
                    "format": "csv",
                },
                accept="text/csv",
            )
        )

    async def create_report_from_log(
        self,
        body: documents.LogSubmission | documents.LaunchedLog,
        *,
        idempotency_key: str | None = None,
    ) -> documents.LogAnswer:
        """Read a training log of Megatron-LM, NeMo, torchtitan or MaxText into a report."""
        return await self._send(
            Call(
                method="POST",
                path="/v1/reports/logs",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    async def summarise_reports(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        chip: list[str] | None = None,
        stack: list[str] | None = None,
        architecture: list[str] | None = None,
        family: list[str] | None = None,
        outcome: list[Literal["ok", "out_of_memory", "crashed", "aborted"]] | None = None,
        source: list[str] | None = None,
        num_chips: list[int] | None = None,
        flagged: bool | None = None,
        within_interval: bool | None = None,
        profile_version: int | None = None,
        created_since: str | None = None,
        label: list[str] | None = None,
        by: str | None = None,
        bucket: Literal["hour", "day", "week", "month"] | None = None,
    ) -> documents.ReportSummary:
        """Summarise residuals by chip, stack, model family, profile version, week, source and
        tenant, and by several of them together over time (`by`, `bucket`)."""
        return await self._send(
            Call(
                method="GET",
                path="/v1/reports/summary",
                query={
                    "since": since,
                    "until": until,
                    "chip": chip,
                    "stack": stack,
                    "architecture": architecture,
                    "family": family,
                    "outcome": outcome,
                    "source": source,
                    "num_chips": num_chips,
                    "flagged": flagged,
                    "within_interval": within_interval,
                    "profile_version": profile_version,
                    "created_since": created_since,
                    "label": label,
                    "by": by,
                    "bucket": bucket,
                },
            )
        )

    def watch_reports(self) -> AsyncIterator[Event]:
        """Send an event `report` with each report as it comes."""
        return self._events(
            Call(method="GET", path="/v1/reports/events", accept="text/event-stream")
        )

    async def get_report(self, id: str) -> documents.StoredReport:
        """Show a report, and the submission as it was received."""
        return await self._send(Call(method="GET", path=f"/v1/reports/{quoted(id)}"))

    async def withdraw_report(
        self, id: str, *, if_match: str | None = None
    ) -> documents.ReportAnswer:
        """Withdraw a report that should not count: it is kept as it was received, and from now on
        no calibration, drift, summary or prediction looks at it."""
        return await self._send(
            Call(method="DELETE", path=f"/v1/reports/{quoted(id)}", headers={"if-match": if_match})
        )

    async def create_benchmark(
        self, body: documents.BenchmarkSubmission, *, idempotency_key: str | None = None
    ) -> documents.BenchmarkAnswer:
        """Store what collectives or matrix products achieve on a cluster: nccl-tests output as it
        is, or a table of products."""
        return await self._send(
            Call(
                method="POST",
                path="/v1/benchmarks",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_benchmarks(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        include_withdrawn: bool | None = None,
    ) -> AsyncIterator[documents.BenchmarkSummary]:
        """List the stored benchmarks, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/benchmarks",
                query={"fields": fields, "limit": limit, "include_withdrawn": include_withdrawn},
            )
        )

    def list_benchmarks_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        include_withdrawn: bool | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """List the stored benchmarks, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/benchmarks",
                query={
                    "fields": fields,
                    "limit": limit,
                    "include_withdrawn": include_withdrawn,
                    "view": "brief",
                },
            )
        )

    async def list_benchmarks_csv(self, *, include_withdrawn: bool | None = None) -> str:
        """List the stored benchmarks, newest first."""
        return await self._send(
            Call(
                method="GET",
                path="/v1/benchmarks",
                query={"include_withdrawn": include_withdrawn, "format": "csv"},
                accept="text/csv",
            )
        )

    async def get_benchmark(self, id: str) -> documents.StoredBenchmark:
        """Show a benchmark, and the submission as it was received."""
        return await self._send(Call(method="GET", path=f"/v1/benchmarks/{quoted(id)}"))

    async def withdraw_benchmark(
        self, id: str, *, if_match: str | None = None
    ) -> documents.BenchmarkAnswer:
        """Withdraw a benchmark that should not count: it is kept as it was received, and from now
        on no calibration looks at it."""
        return await self._send(
            Call(
                method="DELETE", path=f"/v1/benchmarks/{quoted(id)}", headers={"if-match": if_match}
            )
        )

    def list_profiles(self, *, fields: str | None = None) -> AsyncIterator[documents.ProfileAnswer]:
        """List the profile that all share and the caller's own, each with its versions."""
        return self._pages(Call(method="GET", path="/v1/profiles", query={"fields": fields}))

    def list_profiles_brief(self, *, fields: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """List the profile that all share and the caller's own, each with its versions."""
        return self._pages(
            Call(method="GET", path="/v1/profiles", query={"fields": fields, "view": "brief"})
        )

    async def list_profiles_csv(self) -> str:
        """List the profile that all share and the caller's own, each with its versions."""
        return await self._send(
            Call(method="GET", path="/v1/profiles", query={"format": "csv"}, accept="text/csv")
        )

    async def get_profile(self, id: str) -> documents.ProfileAnswer:
        """Show a profile."""
        return await self._send(Call(method="GET", path=f"/v1/profiles/{quoted(id)}"))

    def list_profile_versions(
        self, id: str, *, fields: str | None = None, limit: int | None = None
    ) -> AsyncIterator[documents.ListedVersion]:
        """List the versions of a profile, newest first, each with the errors of the calibration
        that made it, in pages, in full or in brief, or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/profiles/{quoted(id)}/versions",
                query={"fields": fields, "limit": limit},
            )
        )

    def list_profile_versions_brief(
        self, id: str, *, fields: str | None = None, limit: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """List the versions of a profile, newest first, each with the errors of the calibration
        that made it, in pages, in full or in brief, or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/profiles/{quoted(id)}/versions",
                query={"fields": fields, "limit": limit, "view": "brief"},
            )
        )

    async def list_profile_versions_csv(self, id: str) -> str:
        """List the versions of a profile, newest first, each with the errors of the calibration
        that made it, in pages, in full or in brief, or all as CSV."""
        return await self._send(
            Call(
                method="GET",
                path=f"/v1/profiles/{quoted(id)}/versions",
                query={"format": "csv"},
                accept="text/csv",
            )
        )

    async def get_profile_version(self, id: str, version: int) -> documents.ProfileVersionAnswer:
        """Show the coefficients of a version and, where reports made it, what they moved."""
        return await self._send(
            Call(method="GET", path=f"/v1/profiles/{quoted(id)}/versions/{quoted(version)}")
        )

    async def create_calibration(
        self,
        id: str,
        body: documents.CalibrationRequest | None,
        *,
        idempotency_key: str | None = None,
    ) -> documents.ProfileVersionAnswer:
        """Learn a new version from the reports and benchmarks that the active one has not
        learnt."""
        return await self._send(
            Call(
                method="POST",
                path=f"/v1/profiles/{quoted(id)}/calibrations",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    async def activate_profile_version(
        self, id: str, version: int, if_match: str
    ) -> documents.ProfileAnswer:
        """Make predictions use this version."""
        return await self._send(
            Call(
                method="POST",
                path=f"/v1/profiles/{quoted(id)}/versions/{quoted(version)}/activate",
                headers={"if-match": if_match},
            )
        )

    async def deactivate_profile(self, id: str, if_match: str) -> documents.ProfileAnswer:
        """Make the tenant's predictions use the version that all share again, and set the mode of
        its own policy to "manual"."""
        return await self._send(
            Call(
                method="POST",
                path=f"/v1/profiles/{quoted(id)}/deactivate",
                headers={"if-match": if_match},
            )
        )

    async def set_profile_policy(
        self, id: str, if_match: str, body: documents.Policy
    ) -> documents.ProfileAnswer:
        """Say who activates the versions that calibrations make."""
        return await self._send(
            Call(
                method="PUT",
                path=f"/v1/profiles/{quoted(id)}/policy",
                headers={"if-match": if_match},
                body=body,
            )
        )

    async def get_profile_drift(
        self,
        id: str,
        *,
        since: str | None = None,
        until: str | None = None,
        version: int | None = None,
        limit: int | None = None,
    ) -> documents.DriftAnswer:
        """Say whether runs of a chip, fabric, stack and model family have become slower or faster,
        and since when."""
        return await self._send(
            Call(
                method="GET",
                path=f"/v1/profiles/{quoted(id)}/drift",
                query={"since": since, "until": until, "version": version, "limit": limit},
            )
        )

    async def replay_profile_version(
        self, id: str, version: int, body: documents.ReplayRequest | None
    ) -> documents.ReplayAnswer:
        """Replay earlier questions and reports under this version, and say what would change."""
        return await self._send(
            Call(
                method="POST",
                path=f"/v1/profiles/{quoted(id)}/versions/{quoted(version)}/replay",
                body=body,
            )
        )

    async def list_evidence(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        recommendation_id: str | None = None,
        prediction_id: str | None = None,
        rank: int | None = None,
        model: str | None = None,
        cluster: str | None = None,
        num_chips: int | None = None,
        seq_len: int | None = None,
        global_batch: int | None = None,
        precision: Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"] | None = None,
        stack: str | None = None,
        exact: bool | None = None,
        text: str | None = None,
        family: str | None = None,
        outcome: Literal["ok", "out_of_memory"] | None = None,
    ) -> documents.EvidenceList:
        """List the published runs nearest to an answer given before, or to a model, cluster and
        workload, each beside what the active profile predicts of it; in pages, in full or in brief,
        or all as CSV."""
        return await self._send(
            Call(
                method="GET",
                path="/v1/evidence",
                query={
                    "fields": fields,
                    "limit": limit,
                    "recommendation_id": recommendation_id,
                    "prediction_id": prediction_id,
                    "rank": rank,
                    "model": model,
                    "cluster": cluster,
                    "num_chips": num_chips,
                    "seq_len": seq_len,
                    "global_batch": global_batch,
                    "precision": precision,
                    "stack": stack,
                    "exact": exact,
                    "text": text,
                    "family": family,
                    "outcome": outcome,
                },
            )
        )

    async def list_evidence_brief(
        self,
        *,
        fields: str | None = None,
        limit: int | None = None,
        recommendation_id: str | None = None,
        prediction_id: str | None = None,
        rank: int | None = None,
        model: str | None = None,
        cluster: str | None = None,
        num_chips: int | None = None,
        seq_len: int | None = None,
        global_batch: int | None = None,
        precision: Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"] | None = None,
        stack: str | None = None,
        exact: bool | None = None,
        text: str | None = None,
        family: str | None = None,
        outcome: Literal["ok", "out_of_memory"] | None = None,
    ) -> documents.BriefPage:
        """List the published runs nearest to an answer given before, or to a model, cluster and
        workload, each beside what the active profile predicts of it; in pages, in full or in brief,
        or all as CSV."""
        return await self._send(
            Call(
                method="GET",
                path="/v1/evidence",
                query={
                    "fields": fields,
                    "limit": limit,
                    "recommendation_id": recommendation_id,
                    "prediction_id": prediction_id,
                    "rank": rank,
                    "model": model,
                    "cluster": cluster,
                    "num_chips": num_chips,
                    "seq_len": seq_len,
                    "global_batch": global_batch,
                    "precision": precision,
                    "stack": stack,
                    "exact": exact,
                    "text": text,
                    "family": family,
                    "outcome": outcome,
                    "view": "brief",
                },
            )
        )

    async def list_evidence_csv(
        self,
        *,
        recommendation_id: str | None = None,
        prediction_id: str | None = None,
        rank: int | None = None,
        model: str | None = None,
        cluster: str | None = None,
        num_chips: int | None = None,
        seq_len: int | None = None,
        global_batch: int | None = None,
        precision: Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"] | None = None,
        stack: str | None = None,
        exact: bool | None = None,
        text: str | None = None,
        family: str | None = None,
        outcome: Literal["ok", "out_of_memory"] | None = None,
    ) -> str:
        """List the published runs nearest to an answer given before, or to a model, cluster and
        workload, each beside what the active profile predicts of it; in pages, in full or in brief,
        or all as CSV."""
        return await self._send(
            Call(
                method="GET",
                path="/v1/evidence",
                query={
                    "recommendation_id": recommendation_id,
                    "prediction_id": prediction_id,
                    "rank": rank,
                    "model": model,
                    "cluster": cluster,
                    "num_chips": num_chips,
                    "seq_len": seq_len,
                    "global_batch": global_batch,
                    "precision": precision,
                    "stack": stack,
                    "exact": exact,
                    "text": text,
                    "family": family,
                    "outcome": outcome,
                    "format": "csv",
                },
                accept="text/csv",
            )
        )

    def list_catalog(
        self,
        kind: Literal["chips", "clusters", "architectures", "stacks"],
        *,
        fields: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[documents.CatalogEntry]:
        """List shipped and registered entries by name."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/catalog/{quoted(kind)}",
                query={"fields": fields, "limit": limit},
            )
        )

    def list_catalog_brief(
        self,
        kind: Literal["chips", "clusters", "architectures", "stacks"],
        *,
        fields: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """List shipped and registered entries by name."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/catalog/{quoted(kind)}",
                query={"fields": fields, "limit": limit, "view": "brief"},
            )
        )

    async def list_catalog_csv(
        self, kind: Literal["chips", "clusters", "architectures", "stacks"]
    ) -> str:
        """List shipped and registered entries by name."""
        return await self._send(
            Call(
                method="GET",
                path=f"/v1/catalog/{quoted(kind)}",
                query={"format": "csv"},
                accept="text/csv",
            )
        )

    async def get_catalog_entry(
        self, kind: Literal["chips", "clusters", "architectures", "stacks"], name: str
    ) -> documents.CatalogEntry:
        """Show an entry by name or alias."""
        return await self._send(
            Call(method="GET", path=f"/v1/catalog/{quoted(kind)}/{quoted(name)}")
        )

    async def register_chip(
        self, body: documents.ChipEntry, *, idempotency_key: str | None = None
    ) -> documents.CatalogEntry:
        """Register a chip, or a new version of one."""
        return await self._send(
            Call(
                method="POST",
                path="/v1/catalog/chips",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    async def register_cluster(
        self, body: documents.ClusterEntry, *, idempotency_key: str | None = None
    ) -> documents.CatalogEntry:
        """Register a cluster, or a new version of one."""
        return await self._send(
            Call(
                method="POST",
                path="/v1/catalog/clusters",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    async def register_architecture(
        self, body: documents.ArchitectureEntry, *, idempotency_key: str | None = None
    ) -> documents.CatalogEntry:
        """Register an architecture, or a new version of one."""
        return await self._send(
            Call(
                method="POST",
                path="/v1/catalog/architectures",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_audit(
        self, *, fields: str | None = None, limit: int | None = None
    ) -> AsyncIterator[documents.AuditEntry]:
        """List who made, rotated and revoked keys, activated versions, set policies and withdrew
        reports, newest first."""
        return self._pages(
            Call(method="GET", path="/v1/audit", query={"fields": fields, "limit": limit})
        )

    def list_audit_brief(
        self, *, fields: str | None = None, limit: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """List who made, rotated and revoked keys, activated versions, set policies and withdrew
        reports, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/audit",
                query={"fields": fields, "limit": limit, "view": "brief"},
            )
        )

    async def list_audit_csv(self) -> str:
        """List who made, rotated and revoked keys, activated versions, set policies and withdrew
        reports, newest first."""
        return await self._send(
            Call(method="GET", path="/v1/audit", query={"format": "csv"}, accept="text/csv")
        )

    async def create_sweep(
        self, body: documents.SweepRequest, *, idempotency_key: str | None = None
    ) -> documents.SweepDetails:
        """Recommend a layout for every combination of the models, clusters, workloads, stacks and
        constraints that you list, as one job."""
        return await self._send(
            Call(
                method="POST",
                path="/v1/sweeps",
                headers={"idempotency-key": idempotency_key},
                body=body,
                takes_key=True,
            )
        )

    def list_sweeps(
        self, *, fields: str | None = None, limit: int | None = None
    ) -> AsyncIterator[documents.SweepAnswer]:
        """List sweeps, newest first."""
        return self._pages(
            Call(method="GET", path="/v1/sweeps", query={"fields": fields, "limit": limit})
        )

    def list_sweeps_brief(
        self, *, fields: str | None = None, limit: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """List sweeps, newest first."""
        return self._pages(
            Call(
                method="GET",
                path="/v1/sweeps",
                query={"fields": fields, "limit": limit, "view": "brief"},
            )
        )

    async def list_sweeps_csv(self) -> str:
        """List sweeps, newest first."""
        return await self._send(
            Call(method="GET", path="/v1/sweeps", query={"format": "csv"}, accept="text/csv")
        )

    async def get_sweep(self, id: str) -> documents.SweepDetails:
        """Show the progress of a sweep, and the request that it answers."""
        return await self._send(Call(method="GET", path=f"/v1/sweeps/{quoted(id)}"))

    async def remove_sweep(self, id: str) -> None:
        """Cancel a sweep and remove it with its results."""
        await self._send(Call(method="DELETE", path=f"/v1/sweeps/{quoted(id)}"))

    def list_sweep_items(
        self,
        id: str,
        *,
        fields: str | None = None,
        limit: int | None = None,
        outcome: Literal["waiting", "ok", "infeasible", "refused", "failed", "cancelled"]
        | None = None,
    ) -> AsyncIterator[documents.SweepItem]:
        """List the items of a sweep in order, those that are finished with their results, in pages
        or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/sweeps/{quoted(id)}/items",
                query={"fields": fields, "limit": limit, "outcome": outcome},
            )
        )

    def list_sweep_items_brief(
        self,
        id: str,
        *,
        fields: str | None = None,
        limit: int | None = None,
        outcome: Literal["waiting", "ok", "infeasible", "refused", "failed", "cancelled"]
        | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """List the items of a sweep in order, those that are finished with their results, in pages
        or all as CSV."""
        return self._pages(
            Call(
                method="GET",
                path=f"/v1/sweeps/{quoted(id)}/items",
                query={"fields": fields, "limit": limit, "outcome": outcome, "view": "brief"},
            )
        )

    async def list_sweep_items_csv(
        self,
        id: str,
        *,
        outcome: Literal["waiting", "ok", "infeasible", "refused", "failed", "cancelled"]
        | None = None,
    ) -> str:
        """List the items of a sweep in order, those that are finished with their results, in pages
        or all as CSV."""
        return await self._send(
            Call(
                method="GET",
                path=f"/v1/sweeps/{quoted(id)}/items",
                query={"outcome": outcome, "format": "csv"},
                accept="text/csv",
            )
        )

    def watch_sweep(self, id: str) -> AsyncIterator[Event]:
        """Send an event `item` with each result as it comes, `progress`, and `end`."""
        return self._events(
            Call(method="GET", path=f"/v1/sweeps/{quoted(id)}/events", accept="text/event-stream")
        )

    async def cancel_sweep(self, id: str) -> documents.SweepDetails:
        """Cancel the items that are not finished."""
        return await self._send(Call(method="POST", path=f"/v1/sweeps/{quoted(id)}/cancel"))

    async def retry_sweep(self, id: str) -> documents.SweepDetails:
        """Compute the items again that failed or were cancelled."""
        return await self._send(Call(method="POST", path=f"/v1/sweeps/{quoted(id)}/retry"))

    async def create_stream_ticket(self, body: documents.TicketRequest) -> documents.TicketAnswer:
        """Make a URL that opens an event stream within a minute, for browsers, which cannot send a
        key with an EventSource."""
        return await self._send(Call(method="POST", path="/v1/stream-tickets", body=body))

    async def live(self) -> dict[str, Any]:
        """Answer while the process runs."""
        return await self._send(Call(method="GET", path="/livez"))

    async def ready(self) -> Any:
        """Answer whether requests can be served: the database answers, is migrated and takes
        writes, and the cost model is compiled."""
        return await self._send(Call(method="GET", path="/readyz"))

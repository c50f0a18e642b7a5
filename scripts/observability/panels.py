"""What the dashboards are built of: a panel by its queries, a page by its rows of panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from grafana_foundation_sdk.builders import common, prometheus, stat, table, tempo, text, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import tempo as tempo_model
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from scripts.observability.queries import highest, quantile, select

from tandem.obs.instruments import POLICY_VERSION, Histogram

Panel: TypeAlias = Builder[model.Panel]
Steps: TypeAlias = Sequence[tuple[float, str]]
METRICS = model.DataSourceRef(type_val="prometheus", uid="${metrics}")
TRACES = model.DataSourceRef(type_val="tempo", uid="${traces}")
PAGES = {  # uid -> title, in the order of the links
    "tandem-overview": "Tandem / Overview",
    "tandem-rollout": "Tandem / Rollout",
    "tandem-learner": "Tandem / Learner",
    "tandem-checkpoints": "Tandem / Checkpoints and storage",
    "tandem-cluster": "Tandem / Cluster",
}
RAY_UID = "rayDefaultDashboard"
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
STEP_SPANS = '{ name = "step" && resource.service.name = "tandem-controller" && resource.tandem.run.name = "$run" }'
FULL, HALF, THIRD, QUARTER, EIGHTH = 24, 12, 8, 6, 3


def query(expr: str, legend: str = "", *, exemplars: bool = False, instant: bool = False) -> prometheus.Dataquery:
    """One query of a panel."""
    made = prometheus.Dataquery().expr(expr).legend_format(legend or "__auto").exemplar(exemplars).datasource(METRICS)
    return made.instant() if instant else made.range()


def lines(
    title: str,
    words: str,
    queries: Sequence[tuple[str, str]],
    unit: str = "short",
    *,
    width: int = THIRD,
    height: int = 8,
    stacked: bool = False,
    percent: bool = False,
    exemplars: bool = False,
    warn_above: float | None = None,
) -> timeseries.Panel:
    """Curves: (query, legend) each. `percent`: an axis from 0 to 100%; stacked: filled, atop each other."""
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(words)
        .datasource(METRICS)
        .unit(unit)
        .span(width)
        .height(height)
        .line_width(2)
        .span_nulls(True)
        .legend(legend.show_legend(True))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .fill_opacity(40 if stacked else 0)
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if percent:
        panel.min(0).max(1)
    if warn_above is not None:
        panel.thresholds(levels((None, GREEN), (warn_above, RED)))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    for letter, (expr, said) in zip("ABCDEFGH", queries, strict=False):
        panel.with_target(query(expr, said, exemplars=exemplars).ref_id(letter))
    return panel


def times(title: str, words: str, histogram: Histogram, *by: str, width: int = THIRD, **labels: str) -> Panel:
    """Median, 95th and 99th percentile of a duration; points lead to the traces of the slow ones."""
    queries = [
        (quantile(part, histogram, *by, **labels), " ".join([*(f"{{{{{label}}}}}" for label in by), name]))
        for part, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    ]
    return lines(title, words, queries, "s", width=width, exemplars=True)


def number(
    title: str,
    words: str,
    expr: str,
    unit: str = "short",
    *,
    width: int = EIGHTH,
    legend: str = "",
    steps: Steps = (),
    curve: bool = True,
) -> stat.Panel:
    """One figure, large, with its curve behind it. `steps`: from which value on it has which colour."""
    panel = (
        stat.Panel()
        .title(title)
        .description(words)
        .datasource(METRICS)
        .unit(unit)
        .span(width)
        .height(4)
        .graph_mode(BigValueGraphMode.AREA if curve else BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(levels((None, BLUE if not steps else GREEN), *steps))
        .with_target(query(expr, legend).ref_id("A"))
    )
    return panel


def listing(title: str, words: str, expr: str, *, width: int = HALF, hidden: Sequence[str] = ()) -> Panel:
    """A table of what is now; `hidden` columns are left out."""
    shown = model.DataTransformerConfig(
        id_val="organize",
        options={"excludeByName": dict.fromkeys(("Time", "__name__", "instance", "job", *hidden), True)},
    )
    target = query(expr, instant=True).format(PromQueryFormat.TABLE).ref_id("A")
    panel = table.Panel().title(title).description(words).datasource(METRICS).span(width).height(8)
    return panel.with_target(target).with_transformation(shown)


def slowest_steps(width: int = HALF) -> Panel:
    """Traces of steps, the slowest on top."""
    found = tempo.TempoQuery().query_type("traceql").query(STEP_SPANS).limit(100).datasource(TRACES).ref_id("A")
    found.table_type(tempo_model.SearchTableType.TRACES)
    by_time = model.DataTransformerConfig(
        id_val="sortBy", options={"fields": {}, "sort": [{"field": "Duration", "desc": True}]}
    )
    words = "Each step is one trace across all processes: click its id. Needs obs.otlp."
    panel = table.Panel().title("Slowest steps").description(words).datasource(TRACES).span(width).height(8)
    return panel.with_target(found).with_transformation(by_time)


def note(title: str, markdown: str, *, width: int = FULL, height: int = 3) -> Panel:
    """Words."""
    return text.Panel().title(title).content(markdown).span(width).height(height)


def levels(*steps: tuple[float | None, str]) -> build.ThresholdsConfig:
    """From which value on there is which colour; None: from the start."""
    made = [model.Threshold(value=value, color=color) for value, color in steps]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def page(
    uid: str, words: str, rows: Sequence[tuple[str, Sequence[Panel]]], variables: Sequence[build.QueryVariable] = ()
) -> model.Dashboard:
    """A dashboard; a row without a title is just its panels."""
    made = (
        build.Dashboard(PAGES[uid])
        .uid(uid)
        .description(words)
        .tags(["tandem"])
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("10s")
        .with_variable(build.DatasourceVariable("metrics").label("Metrics").type("prometheus"))
        .with_variable(build.DatasourceVariable("traces").label("Traces").type("tempo"))
        .with_variable(choice("run", "Run", f"label_values({POLICY_VERSION.name}, run)", many=False))
    )
    for variable in variables:
        made.with_variable(variable)
    for link in _links():
        made.link(link)
    made.annotation(_new_versions())
    for title, panels in rows:
        if title:
            made.with_row(build.Row(title))
        for panel in panels:
            made.with_panel(panel)
    return _numbered(made.build())


def _numbered(made: model.Dashboard) -> model.Dashboard:
    """With an id for each panel, so that a link to one stays."""
    for number, panel in enumerate(made.panels or (), start=1):
        panel.id_val = number
    return made


def choice(name: str, label: str, asked: str, *, many: bool = True) -> build.QueryVariable:
    """A variable whose values Prometheus knows; of `many`, all to begin with."""
    made = (
        build.QueryVariable(name)
        .label(label)
        .datasource(METRICS)
        .query(asked)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC)
    )
    if many:
        everything = model.VariableOption(selected=True, text="All", value="$__all")
        made.multi(True).include_all(True).all_value(".*").current(everything)
    return made


def _links() -> list[build.DashboardLink]:
    ours = build.DashboardLink("Tandem").type(model.DashboardLinkType.DASHBOARDS).tags(["tandem"])
    ray = build.DashboardLink("Ray").type(model.DashboardLinkType.LINK).url(f"/d/{RAY_UID}")
    ray.tooltip("Ray's own dashboard, where it has been imported")
    traces = build.DashboardLink("Traces").type(model.DashboardLinkType.LINK).url("/explore")
    traces.tooltip('Explore: choose the Tempo data source and ask for { name = "step" }')
    return [
        ours.include_vars(True).keep_time(True),
        ray.keep_time(True).target_blank(True),
        traces.target_blank(True),
    ]


def _new_versions() -> build.AnnotationQuery:
    """A mark where the run went on from an earlier version: it was resumed."""
    version = highest(select(POLICY_VERSION, role="controller"))
    marks = build.AnnotationQuery().name("Resumed from an earlier version").datasource(METRICS).enable(True)
    return marks.icon_color("orange").expr(f"({version}) < ({version} offset 1m)")

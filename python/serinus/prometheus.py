"""A collector for prometheus_client::

prometheus_client.REGISTRY.register(serinus.prometheus.Collector(monitor))
"""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector as _Collector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from .monitor import Monitor

__all__ = ["Collector"]


class Collector(_Collector):
    """What a monitor counts, at every scrape: the series of docs/serve.md, from any thread, without stopping it.

    name: label that tells several monitors apart.
    """

    def __init__(self, monitor: Monitor, name: str = "") -> None:
        self._monitor = monitor
        self._name = name

    def collect(self) -> Iterator[Metric]:
        # The library writes the text that it also serves: one place for names, labels and help.
        yield from text_string_to_metric_families(self._monitor.metrics_text(self._name))

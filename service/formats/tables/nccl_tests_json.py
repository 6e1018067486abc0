"""The JSON that newer nccl-tests write (-J, --json): the rows of the table are its `results`. A
*placement* is a measurement out of place or in place, of which a row may have both."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from models.errors import Invalid
from service.formats.tables.nccl_tests_rows import (
    Output,
    Placement,
    Row,
    cpu_time_refused,
    number,
    programs_in,
    seconds_of,
    wrong_result,
)

_OBJECT = re.compile(r"^[ \t\ufeff]*\{", re.MULTILINE)
_PLACEMENTS = ("out_of_place", "in_place")
_WRONG_NAMES = ("nwrong", "wrong", "#wrong")
_DEVICE_NAMES = ("name", "device_name")


def read_json(text: str) -> Output | None:
    """Returns the rows of JSON output; None where the text has no JSON object. Raises Invalid
    where the JSON is cut off, has no results or has times of the CPU."""
    begin = _OBJECT.search(text)
    if begin is None:
        return None
    try:
        # From the opening brace on: launchers may print lines before and behind the object.
        document, _ = json.JSONDecoder().raw_decode(text, begin.end() - 1)
    except (ValueError, RecursionError) as error:
        rule = f"begins like the JSON of nccl-tests and is none ({error}); send the file whole"
        raise Invalid("nccl_tests", None, rule) from None
    results = document.get("results")
    if not isinstance(results, list):
        rule = "is JSON without a list `results`, which nccl-tests writes with --json"
        raise Invalid("nccl_tests", None, rule)
    output = Output(programs=programs_in(text), has_header=True)
    for result in results:
        _add_result(output, result)
    _add_devices(output, document)
    output.failure = _out_of_bounds(document)
    return output


def _add_result(output: Output, result: object) -> None:
    """Adds the row of one result: {"size": 1048576, "redop": "sum", "out_of_place": {"time":
    52.1, "alg_bw": 20.13, "bus_bw": 37.74, "nwrong": 0}}. Counts it as unread where it has no
    size. Raises Invalid for times of the CPU."""
    size = number(result.get("size")) if isinstance(result, Mapping) else None
    if size is None or not isinstance(result, Mapping):
        output.unread += 1
        return
    placements = []
    wrong: str | None = None
    for name in _PLACEMENTS:
        measured = result.get(name)
        if not isinstance(measured, Mapping):
            continue
        if "cpu_time" in measured or "cputime" in measured:
            raise cpu_time_refused()
        seconds = seconds_of(measured.get("time"))
        if seconds is None:
            continue
        count = next((measured[key] for key in _WRONG_NAMES if key in measured), None)
        fault = wrong_result("#wrong", count, "")  # a count is judged without the data type
        if fault is not None:
            wrong = wrong or f"{fault} at {size:.0f} bytes"
        else:
            bandwidths = number(measured.get("alg_bw")), number(measured.get("bus_bw"))
            placements.append(Placement(seconds, *bandwidths))
    redop = result.get("redop")
    redop = redop.lower() if isinstance(redop, str) and redop else None
    output.add(Row(size, redop, program=None, placements=tuple(placements)), wrong)


def _add_devices(output: Output, document: Mapping[str, Any]) -> None:
    """Sets the ranks and the names of devices by the list of devices in the document or its
    configuration, which has one entry for each rank."""
    config = document.get("config")
    places = [document, config] if isinstance(config, Mapping) else [document]
    devices = next((place["devices"] for place in places if "devices" in place), None)
    if not isinstance(devices, list) or not devices:
        return
    output.ranks = len(devices)
    objects = [device for device in devices if isinstance(device, Mapping)]
    names = (device.get(key) for device in objects for key in _DEVICE_NAMES)
    output.devices = tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def _out_of_bounds(document: Mapping[str, Any]) -> str | None:
    """Returns the document's out_of_bounds entry where it reports wrong results; None where
    there are none. The entry is an object or, in some releases, the number of wrong elements."""
    bounds = document.get("out_of_bounds")
    if isinstance(bounds, Mapping):
        count = number(bounds.get("count"))
        if count or bounds.get("okay") is False or bounds.get("ok") is False:
            return f"out_of_bounds {json.dumps(bounds)[:100]}"
    elif number(bounds):
        return f"out_of_bounds {bounds}"
    return None

"""What the fuzzer of the HTTP API does besides what the API's description tells it."""

import schemathesis
from schemathesis import GenerationMode


def whole(value):
    """JSON Schema takes 1.0 for an integer and has numbers of any size, and the API does not."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return 0
    if isinstance(value, float) and value.is_integer():
        return whole(int(value))
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return value


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is not None and case.meta.generation.mode == GenerationMode.NEGATIVE:
        return
    if isinstance(case.body, (dict, list)):
        case.body = whole(case.body)
    # Nothing comes while it waits.
    if isinstance(case.body, dict) and "wait" in case.body:
        case.body["wait"] = "1ms"
    # A queue that nobody made is all that random names would ever find.
    path = case.path_parameters or {}
    if case.method in ("GET", "POST") and len(path.get("queue", "odd")) % 2 == 0:
        case.path_parameters["queue"] = "orders"
    # Its settings decide what other calls may send: those that change at random are of a queue apart.
    if case.method == "PATCH" and "queue" in path:
        case.path_parameters["queue"] = "patched"

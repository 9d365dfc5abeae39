//! Trace context: from the producer's headers, through the dispatch, to the backend.

use std::collections::{BTreeMap, HashMap};

use opentelemetry::global;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Makes `span` a child of the producer's, as named in the request's headers.
pub(crate) fn continue_from(span: &Span, headers: &BTreeMap<String, String>) {
    let carrier: HashMap<String, String> =
        headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    let context = global::get_text_map_propagator(|propagator| propagator.extract(&carrier));
    // Refused only when no subscriber takes traces: there is nothing to continue then.
    let _ = span.set_parent(context);
}

/// What to send to the backend. Empty without a tracing subscriber: the producer's own headers then go through
/// as they are.
pub(crate) fn to_send(span: &Span) -> BTreeMap<String, String> {
    let mut carrier = HashMap::new();
    global::get_text_map_propagator(|propagator| propagator.inject_context(&span.context(), &mut carrier));
    carrier.into_iter().collect()
}

use proptest::{
    collection::{btree_map, vec},
    prelude::*,
};
use serde_json::json;

use super::*;

fn json_of_any_kind() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(".{0,5}", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Invariant 5: what cannot be called with has its outcome, and that says why.
    #[test]
    fn any_envelope_is_decoded_or_refused_by_name(
        headers in proptest::option::of(json_of_any_kind()), metadata in proptest::option::of(json_of_any_kind()),
    ) {
        let envelope = Envelope { headers: headers.clone(), metadata: metadata.clone() };
        let maps = |value: &Option<Value>| value.as_ref().is_none_or(Value::is_object);
        match decode(&envelope) {
            Ok((read_headers, read_metadata)) => {
                prop_assert!(maps(&headers) && maps(&metadata));
                prop_assert_eq!(headers.unwrap_or(json!({})), json!(read_headers));
                let given = metadata.unwrap_or(json!({}));
                for (name, value) in given.as_object().unwrap() {
                    let read = read_metadata.get(name);
                    match value {
                        Value::Null => prop_assert_eq!(read, None),
                        Value::String(text) => prop_assert_eq!(read, Some(text)),
                        other => prop_assert_eq!(read, Some(&other.to_string())),
                    }
                }
            }
            Err(why) => {
                let names_header = || headers.iter().filter_map(Value::as_object).flatten()
                    .any(|(name, value)| !value.is_string() && why.contains(&format!("\"{name}\"")));
                prop_assert!(why.contains(" not a JSON object") || names_header(), "{why}");
            }
        }
    }
}

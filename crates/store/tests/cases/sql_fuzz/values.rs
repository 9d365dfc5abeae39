//! What is put in the place of an argument, as SQL: what its type can hold at its worst, and what means something.

use proptest::{prelude::*, sample::select, strategy::Union};

use super::Argument;

/// Named as the queues of the fuzzed installation, so that a call gets past its first look.
pub(super) const QUEUES: [&str; 9] =
    ["plain", "m", "fifo", "strict", "dedup", "small", "news", "all news", "some news"];

const TEXTS: &[&str] = &[
    "''",
    "' '",
    "'x'",
    "'ü'",
    "'🦀'",
    "E'e\\u0301\\u0323'",
    "E'\\u200f\\u202e\\ufeff'",
    "E'a\\nb'",
    "E'\\x01'",
    "E'\\u0085'",
    "'%s%n'",
    "'\\'",
    "''''",
    "'null'",
    "'-1'",
    "'{}'",
    "repeat('x', 255)",
    "repeat('x', 256)",
    "repeat('x', 512)",
    "repeat('🦀', 129)",
    "repeat('x', 1025)",
    "repeat('x', 70000)",
    // Does not compress below what an index takes.
    "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) n)",
];
const FILTERS: &[&str] = &[
    "'$'",
    "'$.properties.tier == \"gold\"'",
    "'strict $.properties.none == 1'",
    "'$.subject like_regex \"(\"'",
    "'$.enqueued_at.datetime() < \"2020-01-01\".datetime()'",
    "'$.body.a.b.c > 1e400'",
    "'$ ? (@ > 1'",
    "'$.** == null'",
    "'exists($.x) && !(1/0 == 1)'",
    "'$x == 1'",
    "repeat('(', 3000) || '$ == 1' || repeat(')', 3000)",
];
const JSON: &[&str] = &[
    "'null'",
    "'{}'",
    "'[]'",
    "'1'",
    "'\"x\"'",
    "'1e400'",
    "'-1e-400'",
    "'{\"a\": \"1\", \"a\": \"2\"}'",
    "'{\"\": \"\"}'",
    "'{\"a\": null}'",
    "'{\"a\": {\"b\": [1, 2.50, true, null]}}'",
    "'{\"traceparent\": \"x\\ny\"}'",
    "'{\"\\u0001\\uFFFF\": \"\\ud83e\\udd80\"}'",
    "('{\"a\": ' || repeat('[', 2000) || repeat(']', 2000) || '}')",
    "('[' || repeat('{\"a\":', 1500) || '1' || repeat('}', 1500) || ']')",
    "('{\"a\": \"' || repeat('x', 300000) || '\"}')",
    "(SELECT jsonb_object_agg(n, n::text) FROM generate_series(1, 2000) n)",
];
const SETTINGS: &[&str] = &[
    "kind",
    "ordering",
    "lock_time",
    "max_deliveries",
    "ttl",
    "dedup_window",
    "dead_letters",
    "dead_letter_on_expiry",
    "dead_letter_max_age",
    "dead_letter_max_count",
    "dead_letter_max_bytes",
    "max_payload_bytes",
    "receivers",
    "route",
    "result_ttl",
    "default_deadline",
    "tenant_attributes",
    "colour",
    "",
];
const SETTING_VALUES: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "1.5",
    "1e10",
    "1e400",
    "99999999999999999999",
    "\"\"",
    "\"x\"",
    "\"NaN\"",
    "\"1 second\"",
    "\"100 years\"",
    "\"178000000 years\"",
    "\"-178000000 years\"",
    "\"3 months -90 days\"",
    "\"PT1M\"",
    "\"1:2:3:4\"",
    "\"topic\"",
    "\"queue\"",
    "\"standard\"",
    "\"group_fifo\"",
    "\"strict_fifo\"",
    "[]",
    "[\"userid\"]",
    "[null]",
    "[[\"a\"]]",
    "[\"\"]",
    "[\"a\", \"a\"]",
    "{}",
];
const INTERVALS: &[&str] = &[
    "'5900000 years -2123999990 days'",
    "'0'",
    "'1 millisecond'",
    "'1 microsecond'",
    "'-1 second'",
    "'1 minute'",
    "'12 hours'",
    "'31 days'",
    "'1 month'",
    "'1 month -30 days'",
    "'-1 day 48 hours'",
    "'100 years'",
    "'-100 years'",
    "'178000000 years'",
    "'-178000000 years'",
    "'2147483647 days'",
    "'-2147483648 days'",
    "'2147483647 hours'",
    "'178000000 years -2147483648 days'",
];
const TIMES: &[&str] = &[
    "'infinity'",
    "'-infinity'",
    "'294276-12-31 23:59:59.999999+00'",
    "'4714-11-24 00:00:00+00 BC'",
    "'epoch'",
    "now()",
    "now() - interval '1 hour'",
    "now() + interval '1 hour'",
    "clock_timestamp() + interval '200 milliseconds'",
];
const NUMBERS: &[&str] =
    &["0", "1", "2", "3", "7", "-1", "100", "256", "257", "599", "1000", "1001", "-32768", "32767"];
const INTS: &[&str] = &["2147483647", "-2147483648"];
const BIGINTS: &[&str] =
    &["2147483648", "1000000000000", "1000000000001", "9223372036854775807", "-9223372036854775808"];
const FLOATS: &[&str] =
    &["0", "'-0'", "1", "0.5", "-1", "'NaN'", "'Infinity'", "'-Infinity'", "1e308", "5e-324", "1e9"];
const BYTES: &[&str] = &[
    "''",
    "'\\x00ff'",
    "'\\xf09fa680'",
    "'\\xc328'",
    "convert_to('{\"a\": 1}', 'UTF8')",
    "convert_to(repeat('x', 100000), 'UTF8')",
];

type Sql = BoxedStrategy<String>;

fn one_of(values: &[&str]) -> Sql {
    select(values.iter().map(ToString::to_string).collect::<Vec<_>>()).boxed()
}

/// A value of the argument: anything, or one that is likely to be taken. Arrays of the latter have `length` elements.
pub(super) fn value(argument: &Argument, is_odd: bool, length: usize) -> Sql {
    let Argument { name, kind } = argument;
    let (element, is_array) =
        kind.strip_suffix("[]").map_or((kind.as_str(), false), |element| (element, true));
    let one = match is_odd {
        false => plain(name, element),
        true => {
            Union::new_weighted(vec![(1, Just("NULL".to_owned()).boxed()), (8, odd(name, element))]).boxed()
        }
    };
    let element = element.to_owned();
    let one = one.prop_map(move |sql| format!("({sql})::{element}")).boxed();
    match (is_array, is_odd) {
        (false, _) => one,
        (true, false) => list(one, kind.clone(), length),
        (true, true) => odd_array(one, kind.clone(), length),
    }
}

fn list(element: Sql, kind: String, length: usize) -> Sql {
    prop::collection::vec(element, length)
        .prop_map(move |elements| format!("ARRAY[{}]::{kind}", elements.join(", ")))
        .boxed()
}

fn odd_array(element: Sql, kind: String, length: usize) -> Sql {
    let filled = |shape: &'static str| {
        element.clone().prop_map(move |one| format!("array_fill({one}, {shape})")).boxed()
    };
    let fixed = |sql: &str| Just(format!("{sql}::{kind}")).boxed();
    Union::new_weighted(vec![
        (8, list(element.clone(), kind.clone(), length)),
        (1, list(element.clone(), kind.clone(), length + 1)),
        (1, fixed("NULL")),
        (1, fixed("'{}'")),
        (1, filled("ARRAY[2, 2]")),
        (1, filled("ARRAY[2], ARRAY[0]")),
        (1, filled("ARRAY[1, 1], ARRAY[-5, 9]")),
        (1, filled("ARRAY[300]")),
    ])
    .boxed()
}

/// A value that a call in good order may have.
fn plain(name: &str, kind: &str) -> Sql {
    match kind {
        "text" => meant(name),
        "bytea" => one_of(&["''", "'\\x00ff'", "'x'"]),
        "json" | "jsonb" if name == "config" => {
            one_of(&["'{}'", "'{\"ttl\": \"1 hour\"}'", "'{\"max_deliveries\": 3}'"])
        }
        "json" | "jsonb" => one_of(&["'{}'", "'{\"a\": \"x\"}'"]),
        "interval" => one_of(&["'1 minute'", "'1 second'", "'1 hour'"]),
        "timestamp with time zone" => one_of(&["now() + interval '1 hour'"]),
        "integer" if name == "status" => one_of(&["200"]),
        "smallint" | "integer" | "bigint" | "double precision" => one_of(&["1", "1", "2"]),
        _ => odd(name, kind),
    }
}

/// A value of the type that is not null. A type that is not known here has no function that is called.
fn odd(name: &str, kind: &str) -> Sql {
    match kind {
        "text" => text(name),
        "bytea" => one_of(BYTES),
        "json" | "jsonb" if name == "config" => settings(),
        "json" | "jsonb" => json(),
        "interval" => one_of(INTERVALS),
        "timestamp with time zone" => one_of(TIMES),
        "boolean" => one_of(&["true", "false"]),
        "smallint" => one_of(NUMBERS),
        "integer" => prop_oneof![4 => one_of(NUMBERS), 1 => one_of(INTS)].boxed(),
        "bigint" => prop_oneof![3 => one_of(NUMBERS), 1 => one_of(BIGINTS)].boxed(),
        "double precision" => one_of(FLOATS),
        "uuid" => one_of(&["'00000000-0000-0000-0000-000000000000'", "gen_random_uuid()"]),
        other => panic!("no values are known of the type {other}: add some"),
    }
}

fn text(name: &str) -> Sql {
    let random = "\\PC{0,12}".prop_map(|text| format!("'{}'", text.replace('\'', "''")));
    prop_oneof![2 => meant(name), 4 => one_of(TEXTS), 2 => random].boxed()
}

/// A text that means something as this argument.
fn meant(name: &str) -> Sql {
    match name {
        "queue" | "target" | "topic" | "name" => {
            let names: Vec<String> = QUEUES.iter().chain(&["new"]).map(|name| format!("'{name}'")).collect();
            select(names).boxed()
        }
        "filter" => one_of(FILTERS),
        "mode" => one_of(&["'peek_lock'", "'receive_and_delete'"]),
        "state" => one_of(&["'active'", "'locked'", "'scheduled'", "'deferred'", "'dead'"]),
        "holder" => one_of(&["'h1'", "'h2'"]),
        "id" | "ids" | "token" | "tokens" | "message_id" | "message_ids" => {
            one_of(&["gen_random_uuid()::text"])
        }
        _ => one_of(&["'a'", "'b'", "'c'"]),
    }
}

fn json() -> Sql {
    let pair =
        ("[a-c]", "\\PC{0,6}").prop_map(|(key, value)| format!("{}: {}", quoted(&key), quoted(&value)));
    let object = prop::collection::vec(pair, 0..3)
        .prop_map(|pairs| format!("'{{{}}}'", pairs.join(", ").replace('\'', "''")));
    prop_oneof![1 => one_of(JSON), 1 => object].boxed()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn settings() -> Sql {
    let pair =
        (select(SETTINGS), select(SETTING_VALUES)).prop_map(|(key, value)| format!("\"{key}\": {value}"));
    let object = prop::collection::vec(pair, 0..3).prop_map(|pairs| format!("'{{{}}}'", pairs.join(", ")));
    prop_oneof![8 => object, 1 => one_of(JSON)].boxed()
}

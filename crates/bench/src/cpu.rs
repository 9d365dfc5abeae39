//! Processor time, which a busy machine stretches less than the clock; and memory, and open files.

use std::{fs, path::Path, time::Duration};

use anyhow::Context;

/// Linux counts processor time in hundredths of a second.
const TICKS_PER_SECOND: u64 = 100;

/// Processor time used so far by the Postgres of a data directory: its living processes and those that ended.
pub(crate) fn of_postgres(data_dir: &Path) -> anyhow::Result<Duration> {
    let pid_file = fs::read_to_string(data_dir.join("postmaster.pid"))?;
    let postmaster: u64 = pid_file.lines().next().unwrap_or_default().trim().parse()?;
    let mut ticks = 0;
    for entry in fs::read_dir("/proc")? {
        let Ok(stat) = fs::read_to_string(entry?.path().join("stat")) else { continue };
        // pid (name) state ppid … utime stime cutime cstime are fields 14 to 17.
        let Some((pid, rest)) = stat.split_once(" (") else { continue };
        let fields: Vec<&str> = rest.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let field = |n: usize| fields.get(n - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        if pid.parse() == Ok(postmaster) {
            ticks += field(14) + field(15) + field(16) + field(17);
        } else if field(4) == postmaster {
            ticks += field(14) + field(15);
        }
    }
    Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Processor time used so far by processes that live.
pub(crate) fn of_processes(processes: &[u32]) -> anyhow::Result<Duration> {
    processes.iter().map(|process| of_process(*process)).sum()
}

fn of_process(process: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let field = |n: usize| fields.get(n - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    Ok(Duration::from_millis((field(14) + field(15)) * 1000 / TICKS_PER_SECOND))
}

/// Bytes of memory in which a process that lives resides.
pub(crate) fn resident_bytes(process: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    Ok(kilobytes.context("a process tells its memory")?.parse::<u64>()? * 1024)
}

/// How many files this process may have open, and those that it starts.
pub(crate) fn open_files_limit() -> anyhow::Result<usize> {
    let limits = fs::read_to_string("/proc/self/limits")?;
    let limit =
        limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
    let limit = limit.context("a process tells its limits")?;
    if limit == "unlimited" { Ok(usize::MAX) } else { Ok(limit.parse()?) }
}

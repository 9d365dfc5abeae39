//! The user that Postgres's programs run as when we are root, as which Postgres refuses to run.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::ClusterError;

/// Prints the first of its arguments that this user may not enter (or execute), if there is one.
const FIND_NO_ACCESS: &str = r#"for path; do test -x "$path" || { printf %s "$path"; exit 1; }; done"#;

/// A user other than root.
#[derive(Debug)]
pub(super) struct Account {
    name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Account {
    /// `None` unless we are root. The directory's owner, so that a directory once made by a user goes
    /// on working under `sudo`; where root owns it, `postgres`, or else `nobody`.
    pub(super) fn for_directory(path: &Path) -> Result<Option<Self>, ClusterError> {
        if effective_uid()? != 0 {
            return Ok(None);
        }
        let directory = path.metadata().map_err(ClusterError::io("inspect", path))?;
        if directory.uid() != 0 {
            let (uid, gid) = (directory.uid(), directory.gid());
            return Ok(Some(Self { name: uid.to_string(), uid, gid }));
        }
        let users =
            std::fs::read_to_string("/etc/passwd").map_err(ClusterError::io("read", "/etc/passwd"))?;
        let account = Self::find(&users, "postgres").or_else(|| Self::find(&users, "nobody"));
        account.map(Some).ok_or(ClusterError::NoAccount)
    }

    fn find(users: &str, name: &str) -> Option<Self> {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            if fields.next()? != name {
                return None;
            }
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            (uid != 0).then(|| Self { name: name.to_owned(), uid, gid })
        })
    }

    /// That this user can reach the data and run the programs. Asked of the system as that user, since
    /// mode bits alone do not tell.
    pub(super) fn check_access(&self, data_dir: &Path, bin_dir: &Path) -> Result<(), ClusterError> {
        let postgres = bin_dir.join("postgres");
        let mut needed: Vec<&Path> = data_dir.ancestors().collect();
        needed.reverse();
        let mut to_programs: Vec<&Path> = postgres.ancestors().collect();
        to_programs.reverse();
        needed.append(&mut to_programs);
        // The last ancestor of a relative path is empty, and stands for nothing.
        needed.retain(|path| !path.as_os_str().is_empty());

        let output = command("sh", Some(self))
            .args(["-c", FIND_NO_ACCESS, "sh"])
            .args(needed)
            .stdin(Stdio::null())
            .output()
            .map_err(ClusterError::io("run", "sh"))?;
        if output.status.success() {
            return Ok(());
        }
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).into_owned());
        Err(ClusterError::NoAccess { path, user: self.name.clone() })
    }
}

/// `program` to be run as `account`, or as we are.
///
/// Setting the user also clears the supplementary groups: the standard library calls `setgroups` when
/// root starts a program as someone else.
pub(super) fn command(program: &str, account: Option<&Account>) -> Command {
    let mut command = Command::new(program);
    // The working directory may be closed to that user.
    command.current_dir("/").env("LC_ALL", "C");
    if let Some(account) = account {
        command.uid(account.uid).gid(account.gid);
    }
    command
}

fn effective_uid() -> Result<u32, ClusterError> {
    let output = Command::new("id").arg("-u").output().map_err(ClusterError::io("run", "id"))?;
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .map_err(std::io::Error::other)
        .map_err(ClusterError::io("understand", "id -u"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_is_read_from_passwd_but_never_root() {
        let users = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:104:,,,:/var:/bin/bash\ntoor:x:0:0::/:\n";
        let account = Account::find(users, "postgres").unwrap();
        assert_eq!((account.uid, account.gid), (101, 104));
        assert!(Account::find(users, "toor").is_none());
        assert!(Account::find(users, "nobody").is_none());
    }
}

//! A cluster's directory: made, locked against other programs, and judged before anything is written.

use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use super::ClusterError;
use super::account::Account;

/// What `initdb` fills before its files are moved into place; also named in `watchdog.sh`.
const STAGE: &str = "initdb.new";
/// What the programs print; also named in `watchdog.sh`.
const LOG: &str = "server.log";
/// The file by which a directory is known for a cluster.
const VERSION: &str = "PG_VERSION";
/// How much of the log an error shows.
const TAIL_BYTES: u64 = 4096;

/// A directory that no other program runs a cluster in while this value lives.
#[derive(Debug)]
pub(super) struct DataDir {
    pub(super) path: PathBuf,
    /// The directory itself, locked. The lock goes with the process, however that ends.
    _lock: File,
}

/// Makes the directory and its parents where absent, and returns its path without links.
pub(super) fn prepare(path: &Path) -> Result<PathBuf, ClusterError> {
    if !path.is_dir() {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(ClusterError::io("create", parent))?;
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(ClusterError::io("create", path)(error));
            }
            _ => {}
        }
    }
    path.canonicalize().map_err(ClusterError::io("find", path))
}

impl DataDir {
    /// Locks the directory and, if it holds no cluster yet, makes it `account`'s and private.
    pub(super) fn open(path: PathBuf, account: Option<&Account>) -> Result<Self, ClusterError> {
        let lock = File::open(&path).map_err(ClusterError::io("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ClusterError::InUse { data_dir: path }),
            Err(TryLockError::Error(source)) => return Err(ClusterError::io("lock", path)(source)),
        }
        let directory = Self { path, _lock: lock };
        if directory.version()?.is_none() {
            directory.check_empty()?;
            let path = &directory.path;
            if let Some(account) = account {
                chown(path, Some(account.uid), Some(account.gid))
                    .map_err(ClusterError::io("change the owner of", path))?;
            }
            std::fs::set_permissions(path, Permissions::from_mode(0o700))
                .map_err(ClusterError::io("change the mode of", path))?;
        }
        Ok(directory)
    }

    /// The major version of the cluster in the directory, if there is one.
    pub(super) fn version(&self) -> Result<Option<String>, ClusterError> {
        let path = self.path.join(VERSION);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ClusterError::io("read", path)(error)),
        }
    }

    /// That the directory holds nothing, save what an interrupted [`super::Cluster::start`] left.
    fn check_empty(&self) -> Result<(), ClusterError> {
        for name in self.names(&self.path)? {
            if name != STAGE && name != LOG {
                return Err(ClusterError::NotACluster { data_dir: self.path.clone() });
            }
        }
        Ok(())
    }

    /// Moves what `initdb` made into place. The version file goes last: with it, the cluster is whole.
    pub(super) fn adopt_stage(&self) -> Result<(), ClusterError> {
        let stage = self.path.join(STAGE);
        let mut names = self.names(&stage)?;
        names.sort_by_key(|name| name == VERSION);
        for name in names {
            let from = stage.join(name.as_os_str());
            std::fs::rename(&from, self.path.join(name)).map_err(ClusterError::io("move", from))?;
        }
        std::fs::remove_dir(&stage).map_err(ClusterError::io("remove", stage))
    }

    /// The size of the log, from which [`Self::log_since`] reads on. 0 if there is none.
    pub(super) fn log_bytes(&self) -> u64 {
        self.path.join(LOG).metadata().map_or(0, |file| file.len())
    }

    /// The end of what the log got since it had `start` bytes; says so when it cannot be read.
    pub(super) fn log_since(&self, start: u64) -> String {
        let read = || {
            let mut file = File::open(self.path.join(LOG))?;
            let end = file.metadata()?.len();
            file.seek(SeekFrom::Start(start.max(end.saturating_sub(TAIL_BYTES))))?;
            let mut tail = Vec::new();
            file.read_to_end(&mut tail)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&tail).trim_end().to_owned())
        };
        read().unwrap_or_else(|error| format!("({LOG} cannot be read: {error})"))
    }

    fn names(&self, path: &Path) -> Result<Vec<std::ffi::OsString>, ClusterError> {
        std::fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
            .map_err(ClusterError::io("list", path))
    }
}

//! SIGTERM and SIGINT: the first asks for an orderly end, the second for one at once.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals, from the moment this is made: neither ends the process by itself any more.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts to catch them.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub(crate) fn catch() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The name of the next one. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

//! A process that is there again after it has ended.

use tokio::process::Command;

use crate::process::Running;

/// A process that is started again whenever it has ended.
pub(crate) struct Member {
    start: Box<dyn Fn() -> Command + Send>,
    pub(crate) running: Running,
}

impl Member {
    pub(crate) fn start(start: impl Fn() -> Command + Send + 'static) -> Self {
        let running = Running::start(&mut start());
        Self { start: Box::new(start), running }
    }

    pub(crate) fn start_again(&mut self) {
        self.running = Running::start(&mut (self.start)());
    }
}

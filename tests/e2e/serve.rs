//! `leasehold serve` under way.

use leasehold_testkit::{stand_in::StandIn, wait::until};

use crate::{
    PATIENCE,
    installation::Installation,
    process::{Running, leasehold},
    reading::{get, logged},
};

/// A process that serves, and what it has said of itself.
pub(crate) struct Serve {
    pub(crate) process: Running,
    /// Its name in the database.
    pub(crate) owner: String,
    /// `http://host:port`.
    pub(crate) http: String,
}

/// One queue, `q`, whose calls go to the stand-in; `dispatcher` is what stands in the section of that name.
pub(crate) fn configuration(backend: &StandIn, dispatcher: &str) -> String {
    format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\n[dispatcher]\n{dispatcher}\n\n\
         [[pools]]\nname = \"p\"\nconcurrency = 8\nbackend = {{ url = \"{}/echo\" }}\n\n\
         [[queues]]\nname = \"q\"\npool = \"p\"\n",
        backend.base_url()
    )
}

impl Serve {
    /// Starts it with this configuration, and waits until it is ready.
    pub(crate) async fn start(installation: &Installation, configuration: &str) -> Self {
        let path = installation.directory.write("leasehold.toml", configuration);
        Self::start_with(installation, &["serve", "--config", &path]).await
    }

    /// Starts it with these arguments. Its HTTP address must be one that may be chosen freely.
    pub(crate) async fn start_with(installation: &Installation, args: &[&str]) -> Self {
        Self::start_at(&installation.serving_url(), args).await
    }

    pub(crate) async fn start_at(database_url: &str, args: &[&str]) -> Self {
        let mut command = leasehold(args);
        command.env("DATABASE_URL", database_url).env("LEASEHOLD_LOG_FORMAT", "json");
        let mut process = Running::start(&mut command);
        let address = process.wait_for("it listens", |process| logged(process, "address")).await;
        let owner = process.wait_for("it dispatches", |process| logged(process, "owner")).await;
        let serve = Self { process, owner, http: format!("http://{address}") };
        until("it is ready", PATIENCE, async || serve.get("/readyz").await.0 == 200).await;
        serve
    }

    /// Status and body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        get(&format!("{}{path}", self.http)).await
    }

    /// Asks it to stop; it does, and all went well.
    pub(crate) async fn stop(mut self) {
        self.process.signal("TERM").await;
        self.process.ended_with(0).await;
    }
}

//! Starts a private Postgres in the directory given, prints its port, and holds it until killed:
//! `cargo run -p leasehold-testkit --example hold_cluster -- DIRECTORY [remove]`.
//!
//! The tests kill it to see that Postgres does not outlive it.

use leasehold_testkit::cluster::{Cluster, ClusterOptions, find_bin_dir};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let data_dir = arguments.next().ok_or("which directory?")?;
    let bin_dir = find_bin_dir().ok_or("Postgres is not installed")?;
    let mut options = ClusterOptions::new(data_dir, bin_dir);
    options.remove_on_exit = arguments.next().is_some_and(|argument| argument == "remove");
    let cluster = Cluster::start(options).await?;
    println!("{}", cluster.port());
    std::future::pending().await
}

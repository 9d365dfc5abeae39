//! The container files: what they configure is good, and what they start starts.

use leasehold_testkit::wait::until;
use serde_json::{Value, json};

use crate::{
    PATIENCE,
    directory::Directory,
    installation::{Installation, backend},
    process::{Running, leasehold},
    ran::run,
    read,
    reading::get,
    repository,
    serve::Serve,
};

/// Where both mount their configuration.
const MOUNTED: &str = "/etc/leasehold/leasehold.toml";

fn compose() -> Value {
    serde_saphyr::from_str(&read("docker-compose.yml")).unwrap()
}

/// The documents of the Kubernetes manifest, by kind.
fn manifest(kind: &str) -> Value {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&read("deploy/kubernetes/leasehold.yaml")).unwrap();
    let mut found = documents.into_iter().filter(|document| document["kind"] == kind);
    let document = found.next().unwrap_or_else(|| panic!("a {kind}"));
    assert!(found.next().is_none(), "one {kind}");
    document
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The command that a service or container gives the program, with another file in place of the mounted one.
fn args_with<'a>(args: &'a [String], file: &'a str) -> Vec<&'a str> {
    assert!(args.iter().any(|arg| arg == MOUNTED), "{args:?}");
    args.iter().map(|arg| if arg == MOUNTED { file } else { arg }).collect()
}

/// What listens everywhere and calls a service's name, as a test can run it.
fn local(configuration: &str, service: &str, url: &str) -> String {
    let listen = "listen = \"0.0.0.0:9090\"";
    assert!(configuration.contains(listen) && configuration.contains(service), "{configuration}");
    configuration.replace(listen, "listen = \"127.0.0.1:0\"").replace(service, url)
}

async fn assert_serves(installation: &Installation, args: &[&str], queue: &str) {
    let serve = Serve::start_with(installation, args).await;
    let ids = ["through the container's command".to_owned()];
    installation.enqueue(queue, &ids).await;
    until("it has its result", PATIENCE, async || {
        let sql = "SELECT count(*) FROM leasehold.results";
        installation.value::<i64>(sql, &[]).await == 1
    })
    .await;
    serve.stop().await;
}

#[tokio::test]
async fn the_compose_files_backend_answers_as_it_is_started_there() {
    let args = strings(&compose()["services"]["backend"]["command"]);
    let args: Vec<&str> =
        args.iter().map(|arg| if arg == "0.0.0.0:8000" { "127.0.0.1:0" } else { arg }).collect();
    assert!(args.contains(&"127.0.0.1:0"), "{args:?}");
    let mut process = Running::start(&mut leasehold(&args));
    let url =
        process.wait_for("it says where it is", |process| process.stdout.lines().first().cloned()).await;
    assert_eq!(get(&format!("{url}/health")).await.0, 200);
    process.signal("TERM").await;
    process.ended_with(0).await;
}

#[tokio::test]
async fn the_compose_files_dispatchers_serve_as_they_are_started_there() {
    let compose = compose();
    let services = &compose["services"];
    let first = &services["dispatcher-1"];
    // The second is the first, at another port.
    assert_eq!(services["dispatcher-2"]["command"], first["command"]);
    assert_ne!(services["dispatcher-2"]["ports"], first["ports"]);
    assert_eq!(first["volumes"], json!([format!("./deploy/compose.toml:{MOUNTED}:ro")]));
    assert!(first["environment"]["DATABASE_URL"].as_str().unwrap().starts_with("postgres://"));

    let installation = Installation::empty().await;
    let backend = backend().await;
    let url = format!("{}/echo", backend.base_url());
    let content = local(&read("deploy/compose.toml"), "http://backend:8000/v1/chat/completions", &url);
    let file = installation.directory.write("compose.toml", &content);
    let args = strings(&first["command"]);
    assert_serves(&installation, &args_with(&args, &file), "demo").await;
}

#[tokio::test]
async fn the_configurations_that_containers_mount_are_good() {
    let directory = Directory::new();
    let of_config_map = manifest("ConfigMap")["data"]["leasehold.toml"].as_str().unwrap().to_owned();
    let of_config_map = directory.write("leasehold.toml", &of_config_map);
    let of_compose = repository().join("deploy/compose.toml");
    for file in [of_config_map.as_str(), of_compose.to_str().unwrap()] {
        let mut check = leasehold(&["serve", "--check", "--config", file]);
        run(check.env("DATABASE_URL", "postgres://leasehold@postgres/leasehold"), b"").await.good();
    }
}

#[tokio::test]
async fn the_kubernetes_manifests_containers_run_as_they_are_started_there() {
    let job = manifest("Job");
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    let installation = Installation::empty().await;
    let args = strings(&container["args"]);
    installation.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).await.good();

    let deployment = manifest("Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let mount = &container["volumeMounts"][0];
    assert_eq!(format!("{}/leasehold.toml", mount["mountPath"].as_str().unwrap()), MOUNTED);
    assert_eq!(mount["name"], pod["volumes"][0]["name"]);
    let config_map = manifest("ConfigMap");
    assert_eq!(pod["volumes"][0]["configMap"]["name"], config_map["metadata"]["name"]);

    let backend = backend().await;
    let url = format!("{}/echo", backend.base_url());
    let content = config_map["data"]["leasehold.toml"].as_str().unwrap();
    let content = local(content, "http://llm.default.svc:8000/v1/chat/completions", &url);
    let file = installation.directory.write("leasehold.toml", &content);
    let args = strings(&container["args"]);
    let args = args_with(&args, &file);
    let serve = Serve::start_with(&installation, &args).await;
    for probe in ["livenessProbe", "readinessProbe"] {
        let http = &container[probe]["httpGet"];
        assert_eq!(http["port"], container["ports"][0]["name"]);
        assert_eq!(serve.get(http["path"].as_str().unwrap()).await.0, 200);
    }
    serve.stop().await;
    assert_serves(&installation, &args, "chat").await;
}

/// A process that is killed before its drain is done leaves work to be done twice.
#[tokio::test]
async fn containers_are_given_more_time_to_stop_than_a_drain_takes() {
    let config_map = manifest("ConfigMap");
    let content: toml::Table = config_map["data"]["leasehold.toml"].as_str().unwrap().parse().unwrap();
    let drain = content["dispatcher"]["drain_timeout"].as_str().unwrap();
    let drain = leasehold_dispatch::duration::parse(drain).unwrap();
    let grace = &manifest("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];
    assert!(grace.as_u64().unwrap() >= drain.as_secs() + 10, "{grace}");

    let default = leasehold_dispatch::config::DispatcherConfig::default().drain_timeout;
    let compose = compose();
    let grace = compose["services"]["dispatcher-1"]["stop_grace_period"].as_str().unwrap();
    let grace = leasehold_dispatch::duration::parse(grace).unwrap();
    assert!(grace.as_secs() >= default.as_secs() + 10, "{grace:?}");
    let of_compose: toml::Table = read("deploy/compose.toml").parse().unwrap();
    assert!(!of_compose.contains_key("dispatcher"), "the default counts");
}

/// The image runs what both files give it: the program with arguments, and one of them by default.
#[test]
fn the_image_starts_the_program() {
    let dockerfile = read("deploy/Dockerfile");
    assert!(dockerfile.contains("ENTRYPOINT [\"leasehold\"]"));
    assert!(dockerfile.contains(&format!("CMD [\"serve\", \"--config\", \"{MOUNTED}\"]")));
    for copied in ["Cargo.toml Cargo.lock", "crates crates", "migrations migrations", "tests tests"] {
        assert!(dockerfile.contains(&format!("COPY {copied}")), "the build needs {copied}");
    }
}

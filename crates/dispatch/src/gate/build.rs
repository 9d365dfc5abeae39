//! The gates of a configuration that has been checked.

use std::{sync::Arc, time::Duration};

use leasehold_store::Store;
use rand::{SeedableRng, rngs::StdRng};
use tokio_util::sync::CancellationToken;

use super::{
    Failed, Gate,
    aimd::{Aimd, Window},
    budget::BudgetGate,
    combine::{Composite, WaitOnRefuse},
    leased_rate::LeasedRate,
    local::{Constant, LocalConcurrency},
    prometheus,
    quota::{Keys, QuotaGate},
    reading::Reading,
    scrape,
    tier_admission::TierAdmission,
    token_rate::TokenRate,
};
use crate::{
    backend::BackendConfigError,
    config::{GateConfig, Gating},
    quota::QuotaClient,
};

/// Why a gate cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct GateError(String);

impl GateError {
    fn of(gate: &str) -> impl Fn(BackendConfigError) -> Self {
        move |error| Self(format!("gate {gate}: {}", Failed::by("", &error).message))
    }
}

/// What gates need.
pub(crate) struct Building {
    pub(crate) store: Store,
    pub(crate) quotas: QuotaClient,
    /// Ends what reads in the background.
    pub(crate) stop: CancellationToken,
    pub(crate) rng: StdRng,
}

impl Building {
    pub(crate) fn gate(&mut self, config: &GateConfig) -> Result<Arc<dyn Gate>, GateError> {
        Ok(match config {
            GateConfig::Constant { budget } => Arc::new(Constant { budget: *budget }),
            GateConfig::LocalConcurrency { limit } => Arc::new(LocalConcurrency::new(*limit)),
            GateConfig::Composite { gates } => {
                Arc::new(Composite(gates.iter().map(|gate| self.gate(gate)).collect::<Result<_, _>>()?))
            }
            GateConfig::WaitOnRefuse { gate } => Arc::new(WaitOnRefuse(self.gate(gate)?)),
            GateConfig::TierAdmission { gate } => Arc::new(TierAdmission(self.gate(gate)?)),
            GateConfig::Quota { attribute, mode, limit, limits, window, prefix, gating } => {
                Arc::new(QuotaGate {
                    keys: Keys {
                        prefix: prefix.clone(),
                        attribute: attribute.clone(),
                        limit: *limit,
                        limits: *limits,
                    },
                    mode: *mode,
                    window: *window,
                    gating: *gating,
                    client: self.quotas.clone(),
                })
            }
            GateConfig::TokenRate {
                attribute,
                limit,
                limits,
                window,
                prefix,
                bytes_per_token,
                default_max_tokens,
            } => Arc::new(TokenRate {
                keys: Keys {
                    prefix: prefix.clone(),
                    attribute: attribute.clone(),
                    limit: *limit,
                    limits: *limits,
                },
                window: *window,
                bytes_per_token: *bytes_per_token,
                default_max_tokens: *default_max_tokens,
                client: self.quotas.clone(),
            }),
            GateConfig::Budget { key, refresh } => Arc::new(self.budget(key, *refresh)),
            GateConfig::LeasedRate { key, burst } => {
                Arc::new(LeasedRate::new(key, *burst, self.quotas.clone()))
            }
            GateConfig::Aimd { min, max, start, hold } => {
                let window = Window {
                    min: f64::from(*min),
                    max: f64::from(*max),
                    start: f64::from((*start).clamp(*min, *max)),
                    hold: *hold,
                };
                Arc::new(Aimd::new(window, StdRng::from_rng(&mut self.rng)))
            }
            GateConfig::PrometheusQuery(config) => Arc::new(
                prometheus::query(config, self.stop.clone()).map_err(GateError::of("prometheus-query"))?,
            ),
            GateConfig::PrometheusSaturation(config) => Arc::new(
                prometheus::saturation(config, self.stop.clone())
                    .map_err(GateError::of("prometheus-saturation"))?,
            ),
            GateConfig::PrometheusBudget(config) => Arc::new(
                prometheus::budget(config, self.stop.clone()).map_err(GateError::of("prometheus-budget"))?,
            ),
            GateConfig::EndpointScrape(config) => {
                scrape::gate(config, self.stop.clone()).map_err(GateError::of("endpoint-scrape"))?
            }
        })
    }

    fn budget(&self, key: &str, refresh: Duration) -> BudgetGate {
        let (store, key) = (self.store.clone(), key.to_owned());
        let read = move || {
            let (store, key) = (store.clone(), key.clone());
            async move { store.quota_budget(&key).await.map_err(|e| Failed::by("budget", &e).message) }
        };
        BudgetGate::new("budget", Reading::start("budget", refresh, 0.0, self.stop.clone(), read))
    }
}

/// Whether what a gate reads over HTTP could be asked: the environment has what it names, and TLS can be set up.
pub(crate) fn check_sources(config: &GateConfig) -> Result<(), GateError> {
    match config {
        GateConfig::Composite { gates } => gates.iter().try_for_each(check_sources),
        GateConfig::WaitOnRefuse { gate } | GateConfig::TierAdmission { gate } => check_sources(gate),
        GateConfig::PrometheusQuery(gate) => {
            prometheus::check(&gate.url, &gate.headers).map_err(GateError::of("prometheus-query"))
        }
        GateConfig::PrometheusSaturation(gate) => {
            prometheus::check(&gate.url, &gate.headers).map_err(GateError::of("prometheus-saturation"))
        }
        GateConfig::PrometheusBudget(gate) => {
            prometheus::check(&gate.url, &gate.headers).map_err(GateError::of("prometheus-budget"))
        }
        GateConfig::EndpointScrape(gate) => scrape::check(gate).map_err(GateError::of("endpoint-scrape")),
        _ => Ok(()),
    }
}

/// The metadata keys by which a gate may refuse one request and let another pass, each once, in their order.
pub(crate) fn tenant_attributes(config: &GateConfig) -> Vec<String> {
    let mut found = match config {
        GateConfig::Quota { attribute, gating: Gating::Blocking, .. }
        | GateConfig::TokenRate { attribute, .. } => {
            vec![attribute.clone()]
        }
        GateConfig::Composite { gates } => gates.iter().flat_map(tenant_attributes).collect(),
        GateConfig::WaitOnRefuse { gate } | GateConfig::TierAdmission { gate } => tenant_attributes(gate),
        _ => Vec::new(),
    };
    let mut seen = std::collections::HashSet::new();
    found.retain(|attribute| seen.insert(attribute.clone()));
    found.truncate(8);
    found
}

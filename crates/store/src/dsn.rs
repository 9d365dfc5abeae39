//! Reads a connection string without ever repeating it: it may hold a password.

use tokio_postgres::{
    Config,
    config::{Host, SslMode},
};

use crate::{Error, StoreOptions, tls::Verify};

/// Settings of every connection. The planner is kept from plans that a fresh table's missing statistics make
/// look good and that leave dead index entries unmarked; statements run at READ COMMITTED, and
/// strings are read as the standard has them, whatever the database's defaults.
const SESSION_SETTINGS: &str = "-c default_transaction_isolation=read\\ committed -c standard_conforming_strings=on \
     -c plan_cache_mode=force_generic_plan -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c enable_seqscan=off -c jit=off -c leasehold.body_text=off";

pub(crate) struct Dsn {
    pub(crate) config: Config,
    pub(crate) verify: Verify,
}

pub(crate) fn parse(url: &str, options: &StoreOptions) -> Result<Dsn, Error> {
    if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
        return Err(Error::InvalidDsn("it must begin with postgres:// or postgresql://".into()));
    }
    check_schema_name(&options.schema)?;
    if options.pool_size == 0 {
        return Err(Error::InvalidDsn("pool_size must be at least 1".into()));
    }
    check_ats(url)?;
    let (url, verify, root_cert) = take_tls_parameters(url)?;
    let mut config: Config = url.parse().map_err(|e: tokio_postgres::Error| {
        Error::InvalidDsn(std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string))
    })?;
    check_places(&config)?;
    let verify = match (verify, root_cert) {
        (true, path) => Verify::Full { root_cert: path },
        (false, _) => Verify::None,
    };
    if matches!(verify, Verify::Full { .. }) {
        config.ssl_mode(SslMode::Require);
    }
    let theirs = config.get_options().unwrap_or_default().to_owned();
    config.options(format!("{theirs} -c search_path={},pg_temp {SESSION_SETTINGS}", options.schema));
    if config.get_application_name().is_none() {
        config.application_name("leasehold");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(std::time::Duration::from_secs(10));
    }
    Ok(Dsn { config, verify })
}

/// Where it is, for people: `host:port/database`, or several. No user, and no password.
pub(crate) fn place(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| match host {
        Host::Tcp(name) => format!("{name}:{}", port(at)),
        Host::Unix(path) => format!("{}:{}", path.display(), port(at)),
    });
    let hosts = hosts.collect::<Vec<_>>().join(",");
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("{hosts}/{database}")
}

/// The driver takes all before the first @ for a user and password: what stands behind another one, or the parameters that
/// were meant to stand there, would be part of a host's name, and be shown as such.
fn check_ats(url: &str) -> Result<(), Error> {
    let ats: Vec<usize> = url.match_indices('@').map(|(at, _)| at).collect();
    let question = url.find('?').unwrap_or(url.len());
    if ats.len() > 1 || ats.first().is_some_and(|at| *at > question) {
        let problem = "an @ or ? in a user, password or parameter must be written as %40 or %3F";
        return Err(Error::InvalidDsn(problem.into()));
    }
    Ok(())
}

/// What would only come to light when a connection is tried, and be tried again and again.
fn check_places(config: &Config) -> Result<(), Error> {
    let hosts = config.get_hosts().len().max(config.get_hostaddrs().len());
    let has_nul = |text: Option<&str>| text.is_some_and(|text| text.contains('\0'));
    let texts = [config.get_user(), config.get_dbname(), config.get_options(), config.get_application_name()];
    let problem = if hosts == 0 {
        "it names no host"
    } else if config.get_ports().len() > 1 && config.get_ports().len() != hosts {
        "it has as many ports as hosts, or one for all"
    } else if config.get_hosts().iter().any(is_nameless) {
        "a host's name is empty"
    } else if texts.into_iter().any(has_nul) || config.get_password().is_some_and(|p| p.contains(&0)) {
        "it holds a NUL (%00)"
    } else {
        return Ok(());
    };
    Err(Error::InvalidDsn(problem.into()))
}

fn is_nameless(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => name.is_empty() || name.contains('\0'),
        #[cfg(unix)]
        Host::Unix(path) => path.as_os_str().is_empty(),
    }
}

/// A schema's name goes into a search path; a plain identifier needs no quoting anywhere.
fn check_schema_name(schema: &str) -> Result<(), Error> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts_well = schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if starts_well && schema.len() <= 48 && schema.chars().all(plain) && !schema.starts_with("pg_") {
        return Ok(());
    }
    Err(Error::InvalidDsn(format!(
        "schema \"{schema}\" must be 1 to 48 lower-case letters, digits and underscores, not begin with a digit or pg_"
    )))
}

/// libpq's `sslmode=verify-ca|verify-full` and `sslrootcert`, which the driver does not know. Returns the URL
/// without them.
fn take_tls_parameters(url: &str) -> Result<(String, bool, Option<String>), Error> {
    let Some((base, query)) = url.split_once('?') else { return Ok((url.to_owned(), false, None)) };
    let (mut verify, mut root_cert, mut kept) = (false, None, Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", "verify-full" | "verify-ca")) => verify = true,
            Some(("sslmode", "allow")) => kept.push("sslmode=prefer"),
            Some(("sslrootcert", path)) => root_cert = Some(decode_percent(path)?),
            _ => kept.push(pair),
        }
    }
    let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    Ok((format!("{base}{query}"), verify, root_cert))
}

fn decode_percent(text: &str) -> Result<String, Error> {
    let broken = || Error::InvalidDsn("sslrootcert is not a percent-encoded path".into());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next().ok_or_else(broken)?, rest.next().ok_or_else(broken)?];
        let digits = std::str::from_utf8(&digits).map_err(|_| broken())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| broken())?);
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(url: &str) -> String {
        match parse(url, &StoreOptions::default()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{url} was accepted"),
        }
    }

    #[test]
    fn an_error_never_shows_the_password() {
        for url in [
            "mysql://me:hunter2@localhost/db",
            "postgres://me:hunter2@localhost:notaport/db",
            "postgres://me:hunter2@localhost/db?nonsense=1",
            "host=localhost password=hunter2",
        ] {
            let message = refused(url);
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn what_stands_in_the_wrong_place_is_neither_taken_for_something_else_nor_shown() {
        for url in [
            // A password with a raw @: the rest of it would be the host, or a parameter's name.
            "postgres://me:hunter2@hunter2@localhost/db",
            "postgres://me:a@hunter2?hunter2=1@localhost/db",
            // Would connect to a host named `b` as a user named `host/db?application_name=a`.
            "postgres://host/db?application_name=hunter2@b",
            // Lost its & without a word.
            "postgres://me:hunter2?&hunter2@localhost/db",
        ] {
            let message = refused(url);
            assert!(message.contains("%40") && !message.contains("hunter2"), "{message}");
        }
        let dsn = parse("postgres://me:a%40b%3F&c@localhost/db", &StoreOptions::default()).unwrap();
        assert_eq!(dsn.config.get_password(), Some(&b"a@b?&c"[..]));
    }

    #[test]
    fn what_no_connection_can_be_made_with_is_refused_at_once() {
        for (url, named) in [
            ("postgres://", "no host"),
            ("postgres:///db", "no host"),
            ("postgres://me@/db", "no host"),
            ("postgres://a,b,c/db?port=1,2", "ports"),
            ("postgres://a,,b/db", "name is empty"),
            ("postgres://:5432/db", "name is empty"),
            ("postgres://me%00@a/db", "NUL"),
            ("postgres://me:%00@a/db", "NUL"),
            ("postgres://a/db?options=%00", "NUL"),
        ] {
            let message = refused(url);
            assert!(message.contains(named), "{url}: {message}");
        }
        assert!(parse("postgres:///db?host=/var/run/postgresql", &StoreOptions::default()).is_ok());
        assert!(parse("postgres://a:1,b:2/db", &StoreOptions::default()).is_ok());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_a_password_never_shown(
            user in "[a-z%@:/?&=]{0,4}", password in "[-@:/?&=%#a-z]{0,3}hunter2[-@:/?&=%#a-z]{0,3}",
            rest in prop_oneof!["\\PC{0,20}", "(localhost|\\[::1|,|:|/|db|\\?|sslmode=|port=|&|=|%|options|verify-full|1){0,9}"],
        ) {
            let url = format!("postgres://{user}:{password}@{rest}");
            if let Err(error) = parse(&url, &StoreOptions::default()) {
                let message = error.to_string();
                prop_assert!(!message.contains("hunter2"), "{url}: {message}");
            }
        }

        #[test]
        fn a_password_that_is_encoded_arrives(password in "\\PC{1,12}") {
            let encoded: String = password.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let dsn = parse(&format!("postgres://me:{encoded}@localhost/db?sslmode=require"), &StoreOptions::default());
            let dsn = dsn.unwrap_or_else(|error| panic!("{error}"));
            prop_assert_eq!(dsn.config.get_password(), Some(password.as_bytes()));
        }
    }

    #[test]
    fn a_schema_name_that_needs_quoting_is_refused() {
        for schema in ["", "Upper", "a b", "a;b", "1a", "pg_x", "ä", &"x".repeat(49)] {
            let options = StoreOptions { schema: schema.into(), ..StoreOptions::default() };
            assert!(parse("postgres://localhost/db", &options).is_err(), "{schema:?} was accepted");
        }
    }

    #[test]
    fn verify_full_asks_for_a_verified_connection() {
        let url = "postgres://localhost/db?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem&connect_timeout=3";
        let dsn = parse(url, &StoreOptions::default()).unwrap();
        assert_eq!(dsn.config.get_ssl_mode(), SslMode::Require);
        assert!(matches!(dsn.verify, Verify::Full { root_cert: Some(path) } if path == "/etc/ca.pem"));
    }
}

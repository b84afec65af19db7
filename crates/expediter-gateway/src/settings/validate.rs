//! From what is written to what can be relied on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;

use ipnet::IpNet;

use super::aliases::AliasTable;
use super::attachments::{Attachments, parse_replica_file};
use super::key_path::KeyPath;
use super::mistake::Mistake;
use super::raw::{RawAdmin, RawBreaker, RawPool, RawProbe, RawSettings, RawTls, RawUsage};
use super::replica_url::ReplicaUrl;
use super::secret::Secret;
use super::tls::{TlsIdentity, TlsIdentityError};
use super::{AdminSettings, PoolSettings, Settings, UsageSink};

impl Settings {
    /// Checks everything that a schema cannot: addresses, URLs, files, aliases, and what must fit together.
    ///
    /// # Errors
    /// All mistakes, not only the first.
    pub fn from_raw(raw: RawSettings, attachments: &Attachments) -> Result<Self, Vec<Mistake>> {
        let mut check = Check { attachments, mistakes: Vec::new(), replicas: BTreeMap::new() };
        let settings = check.settings(raw);
        match settings {
            Some(settings) if check.mistakes.is_empty() => Ok(settings),
            _ => Err(check.mistakes),
        }
    }
}

/// A pass over the configuration. What is wrong is noted and left out; where there is a mistake, the settings are
/// not handed on.
struct Check<'a> {
    attachments: &'a Attachments,
    mistakes: Vec<Mistake>,
    /// Every replica seen so far, and where.
    replicas: BTreeMap<ReplicaUrl, KeyPath>,
}

impl<'a> Check<'a> {
    fn settings(&mut self, raw: RawSettings) -> Option<Settings> {
        let root = KeyPath::ROOT;
        let listen = self.address(&raw.listen, root.key("listen"));
        let tls = raw.tls.as_ref().and_then(|tls| self.tls(tls));
        let admin = self.admin(&raw.admin);
        if let (Some(listen), Some(admin)) = (listen, &admin) {
            self.two_listeners(listen, admin.listen);
        }
        let replicas = self.replicas(&raw.replicas, &root.key("replicas"));
        let can_register = raw.admin.token.is_some()
            || raw.admin.token_file.is_some()
            || self.attachments.admin_token.is_some();
        let pools = raw.pools.iter().map(|(name, pool)| (name.clone(), self.pool(name, pool, can_register)));
        let pools = pools.collect();
        let pool_names: BTreeSet<&str> = raw.pools.keys().map(String::as_str).collect();
        let aliases = AliasTable::resolve(&raw.aliases, &pool_names, &mut self.mistakes);
        self.alias_names(raw.aliases.keys());
        self.probe(&raw.probe);
        self.breaker(&raw.breaker);
        let usage = self.usage(&raw.usage);
        Some(Settings {
            listen: listen?,
            tls,
            shards: NonZeroUsize::new(usize::try_from(raw.shards.get()).ok()?),
            admin: admin?,
            replicas,
            pools,
            aliases,
            limits: raw.limits.into(),
            probe: raw.probe.into(),
            retry: raw.retry.into(),
            breaker: raw.breaker.into(),
            wait: raw.wait.into(),
            ramp: raw.ramp_ms.duration(),
            drain_limit: raw.drain_limit_ms.duration(),
            usage: usage?,
            log: raw.log.into(),
            expose: raw.expose.into(),
        })
    }

    fn mistake(&mut self, path: KeyPath, message: impl Into<String>, remedy: impl Into<String>) {
        self.mistakes.push(Mistake::new(path, message, remedy));
    }

    fn address(&mut self, text: &str, path: KeyPath) -> Option<SocketAddr> {
        let address = text.parse().ok();
        if address.is_none() {
            self.mistake(
                path,
                format!("`{text}` is not an IP address with a port"),
                "write `127.0.0.1:8080` for this machine only, `0.0.0.0:8080` or `[::]:8080` for all networks",
            );
        }
        address
    }

    fn two_listeners(&mut self, listen: SocketAddr, admin: SocketAddr) {
        let overlap =
            listen.ip() == admin.ip() || listen.ip().is_unspecified() || admin.ip().is_unspecified();
        if listen.port() != 0 && listen.port() == admin.port() && overlap {
            self.mistake(
                KeyPath::ROOT.key("admin").key("listen"),
                format!("`{admin}` and `listen`, `{listen}`, take the same port"),
                "give the admin listener a port of its own",
            );
        }
    }

    fn tls(&mut self, raw: &RawTls) -> Option<TlsIdentity> {
        let path = KeyPath::ROOT.key("tls");
        let certificate = self.file(&raw.certificate_file, &path.key("certificate_file"));
        let key = self.file(&raw.key_file, &path.key("key_file"));
        let error = match TlsIdentity::from_pem(certificate?, key?) {
            Ok(identity) => return Some(identity),
            Err(error) => error,
        };
        let (path, remedy) = match &error {
            TlsIdentityError::Certificate => {
                (path.key("certificate_file"), "give a PEM file, `-----BEGIN CERTIFICATE-----`")
            }
            TlsIdentityError::Key => (path.key("key_file"), "give a PEM file, `-----BEGIN PRIVATE KEY-----`"),
            TlsIdentityError::Pair(_) => {
                (path, "give the key that belongs to the first certificate of the chain")
            }
        };
        self.mistake(path, error.to_string(), remedy);
        None
    }

    fn admin(&mut self, raw: &RawAdmin) -> Option<AdminSettings> {
        let path = KeyPath::ROOT.key("admin");
        let listen = self.address(&raw.listen, path.key("listen"));
        let token = self.admin_token(raw, &path);
        let mut replica_networks = Vec::new();
        for (index, text) in raw.replica_networks.iter().enumerate() {
            match text.parse::<IpNet>() {
                Ok(network) => replica_networks.push(network.trunc()),
                Err(_) => self.mistake(
                    path.key("replica_networks").index(index),
                    format!("`{text}` is not a network"),
                    "write an address and a prefix length, such as `10.0.0.0/8` or `fc00::/7`; one host is `/32` or \
                     `/128`",
                ),
            }
        }
        Some(AdminSettings { listen: listen?, token, replica_networks })
    }

    fn admin_token(&mut self, raw: &RawAdmin, path: &KeyPath) -> Option<Secret> {
        match (&raw.token, &raw.token_file) {
            (None, None) => {
                let token = self.attachments.admin_token.clone()?;
                self.header_secret(token, path.key("token"), "EXPEDITER_ADMIN_TOKEN")
            }
            (Some(token), None) => self.header_secret(token.clone(), path.key("token"), "the token"),
            (None, Some(file)) => self.secret_file(file, path.key("token_file")),
            (Some(_), Some(_)) => {
                let message = "the token is given twice, by `token` and by `token_file`";
                self.mistake(path.key("token"), message, "keep one of them");
                None
            }
        }
    }

    /// A file of one line: what surrounds it is not part of the secret.
    fn secret_file(&mut self, file: &Path, path: KeyPath) -> Option<Secret> {
        let contents = self.file(file, &path)?;
        let secret = Secret::new(String::from_utf8_lossy(contents).trim());
        self.header_secret(secret, path, &file.display().to_string())
    }

    fn header_secret(&mut self, secret: Secret, path: KeyPath, source: &str) -> Option<Secret> {
        if secret.fits_header() {
            return Some(secret);
        }
        self.mistake(
            path,
            format!("{source} is empty, or holds what a header cannot"),
            "use one line of visible ASCII without blanks, such as `openssl rand -hex 32` prints",
        );
        None
    }

    fn file(&mut self, file: &Path, path: &KeyPath) -> Option<&'a [u8]> {
        let attachments = self.attachments;
        let why = match attachments.files.get(file) {
            Some(Ok(contents)) => return Some(contents),
            Some(Err(why)) => why,
            None => "it was not read",
        };
        self.mistake(
            path.clone(),
            format!("cannot read {}: {why}", file.display()),
            "name a file that exists and that the gateway's user may read",
        );
        None
    }

    fn replicas(&mut self, texts: &[String], path: &KeyPath) -> Vec<ReplicaUrl> {
        let mut urls = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let path = path.index(index);
            match text.parse::<ReplicaUrl>() {
                Ok(url) => {
                    if self.is_new(&url, &path) {
                        urls.push(url);
                    }
                }
                Err(error) => self.mistake(path, error.to_string(), error.remedy()),
            }
        }
        urls
    }

    /// Whether no other pool, and no earlier line of this one, has the replica.
    fn is_new(&mut self, url: &ReplicaUrl, path: &KeyPath) -> bool {
        let Some(first) = self.replicas.insert(url.clone(), path.clone()) else {
            return true;
        };
        self.mistake(
            path.clone(),
            format!("{url} stands at {first} already"),
            "name each replica once: it belongs to one pool, and its load is counted there",
        );
        self.replicas.insert(url.clone(), first);
        false
    }

    fn pool(&mut self, name: &str, raw: &RawPool, can_register: bool) -> PoolSettings {
        let path = KeyPath::ROOT.key("pools").key(name);
        self.name(name, &path);
        let model = raw.model.clone().unwrap_or_else(|| name.to_owned());
        if raw.model.is_some() {
            self.name(&model, &path.key("model"));
        }
        let mut replicas = self.replicas(&raw.replicas, &path.key("replicas"));
        if let Some(file) = &raw.replica_file {
            let path = path.key("replica_file");
            for url in self.replica_file(file, &path) {
                if !replicas.contains(&url) && self.is_new(&url, &path) {
                    replicas.push(url);
                }
            }
        }
        if raw.replicas.is_empty() && raw.replica_file.is_none() && !can_register {
            self.mistake(
                path.clone(),
                format!("pool `{name}` has no replica and no way to get one"),
                "list `replicas`, name a `replica_file`, or set an admin token to register replicas with",
            );
        }
        let engine_key =
            raw.engine_key_file.as_ref().and_then(|file| self.secret_file(file, path.key("engine_key_file")));
        PoolSettings {
            model,
            policy: raw.policy.into(),
            policy_parameters: raw.policy_parameters.clone().into(),
            replicas,
            engine_key,
        }
    }

    fn replica_file(&mut self, file: &Path, path: &KeyPath) -> Vec<ReplicaUrl> {
        let Some(contents) = self.file(file, path) else {
            return Vec::new();
        };
        parse_replica_file(contents).unwrap_or_else(|errors| {
            for error in errors {
                self.mistake(path.clone(), format!("{}: {error}", file.display()), error.remedy());
            }
            Vec::new()
        })
    }

    /// Names are labels of metrics and stand in logs and answers.
    fn name(&mut self, name: &str, path: &KeyPath) {
        if name.trim() != name || name.is_empty() || name.chars().any(char::is_control) || name.len() > 256 {
            self.mistake(
                path.clone(),
                "a name is empty, longer than 256 bytes, or has blanks around it or control characters in it",
                "write the model's name as clients and engines spell it",
            );
        }
        if name == UNKNOWN_POOL {
            self.mistake(
                path.clone(),
                format!("`{UNKNOWN_POOL}` stands for requests that name no known model"),
                "choose another name",
            );
        }
    }

    fn alias_names<'n>(&mut self, names: impl Iterator<Item = &'n String>) {
        for name in names {
            self.name(name, &KeyPath::ROOT.key("aliases").key(name));
        }
    }

    fn probe(&mut self, raw: &RawProbe) {
        if raw.stale_ms < raw.report_ms {
            self.mistake(
                KeyPath::ROOT.key("probe").key("stale_ms"),
                format!(
                    "every report would be stale ({}) before the next comes ({})",
                    raw.stale_ms, raw.report_ms
                ),
                "set `stale_ms` to several times `report_ms`",
            );
        }
    }

    fn breaker(&mut self, raw: &RawBreaker) {
        if raw.trial_ms_max < raw.trial_ms {
            self.mistake(
                KeyPath::ROOT.key("breaker").key("trial_ms_max"),
                format!("the longest time ({}) is below the first ({})", raw.trial_ms_max, raw.trial_ms),
                "set `trial_ms_max` to at least `trial_ms`",
            );
        }
    }

    fn usage(&mut self, raw: &RawUsage) -> Option<UsageSink> {
        match raw.file.as_deref() {
            None => Some(UsageSink::Nowhere),
            Some("-") => Some(UsageSink::Stdout),
            Some("") => {
                let path = KeyPath::ROOT.key("usage").key("file");
                self.mistake(
                    path,
                    "the path is empty",
                    "write a path, `-` for stdout, or `null` for no record",
                );
                None
            }
            Some(path) => Some(UsageSink::File(path.into())),
        }
    }
}

/// The label that requests for unknown models share in the metrics.
pub const UNKNOWN_POOL: &str = "unknown";

//! The real `expediter serve` under test: started with a configuration file, watched through its
//! log, its admin listener and its usage records, and killed at the end.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Answer, Client, post_bytes};
use super::replica::Replica;
use super::wait::{PATIENCE, eventually, eventually_some};

/// The admin token of every gateway that the kit starts.
pub const ADMIN_TOKEN: &str = "admin-secret";

/// How to start a gateway. The defaults: one pool `m-8b` with the given replicas, alias `gpt-fast`,
/// JSON log, ports of the system's choice, usage records to a file; all else as the program has it.
pub struct Builder {
    pools: Vec<(String, Vec<String>)>,
    aliases: Vec<(String, String)>,
    yaml: String,
    sets: Vec<(String, String)>,
    config: Option<String>,
    args: Vec<String>,
    ready: usize,
}

impl Builder {
    /// Another pool.
    pub fn pool(mut self, model: &str, replicas: &[&Replica]) -> Self {
        self.ready += replicas.len();
        self.pools.push((model.to_owned(), replicas.iter().map(|replica| replica.url()).collect()));
        self
    }

    pub fn alias(mut self, name: &str, target: &str) -> Self {
        self.aliases.push((name.to_owned(), target.to_owned()));
        self
    }

    /// `--set PATH=VALUE`.
    pub fn set(mut self, path: &str, value: impl std::fmt::Display) -> Self {
        self.sets.push((path.to_owned(), value.to_string()));
        self
    }

    /// Lines added to the end of the configuration file.
    pub fn yaml(mut self, lines: &str) -> Self {
        self.yaml.push_str(lines);
        self
    }

    /// This configuration file instead of the made one; `listen`, `admin`, `log` and `usage` are
    /// still set on the command line.
    pub fn config(mut self, text: &str) -> Self {
        self.config = Some(text.to_owned());
        self
    }

    /// Arguments added to `serve`; replica URLs, for instance.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// How many replicas [`Self::start`] waits for; all of them unless told otherwise.
    pub fn wait_for(mut self, replicas: usize) -> Self {
        self.ready = replicas;
        self
    }

    /// Starts it and waits until its replicas are ready.
    pub fn start(self) -> Gateway {
        let ready = self.ready;
        let gateway = self.start_unready();
        gateway.wait_ready(ready);
        gateway
    }

    /// Starts it and waits only until it listens.
    pub fn start_unready(self) -> Gateway {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let config = directory.path().join("expediter.yaml");
        let usage = directory.path().join("usage.jsonl");
        std::fs::write(&config, self.config.clone().unwrap_or_else(|| self.made_config())).expect("the file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_expediter"));
        command.arg("serve").args(&self.args).arg("--config").arg(&config);
        let own = [
            ("listen", "127.0.0.1:0".to_owned()),
            ("admin.listen", "127.0.0.1:0".to_owned()),
            ("admin.token", ADMIN_TOKEN.to_owned()),
            ("log.format", "json".to_owned()),
            ("usage.file", usage.display().to_string()),
        ];
        let sets = self.sets.iter().map(|(path, value)| (path.as_str(), value.clone()));
        for (path, value) in own.into_iter().chain(sets) {
            command.arg("--set").arg(format!("{path}={value}"));
        }
        Gateway::spawn(command, directory, config, usage)
    }

    fn made_config(&self) -> String {
        let mut text = String::new();
        for (n, (model, replicas)) in self.pools.iter().enumerate() {
            let key = if n == 0 { "pools:\n" } else { "" };
            let _ = writeln!(text, "{key}  {model}:\n    replicas: [{}]", replicas.join(", "));
        }
        for (n, (name, target)) in self.aliases.iter().enumerate() {
            let key = if n == 0 { "aliases:\n" } else { "" };
            let _ = writeln!(text, "{key}  {name}: {target}");
        }
        text.push_str(&self.yaml);
        text
    }
}

type Lines = Arc<Mutex<Vec<String>>>;

/// A running gateway.
pub struct Gateway {
    child: Child,
    pub address: SocketAddr,
    pub admin_address: SocketAddr,
    log: Lines,
    stdout: Lines,
    config: PathBuf,
    usage: PathBuf,
    exited: Option<ExitStatus>,
    _directory: tempfile::TempDir,
}

impl Gateway {
    /// A gateway in front of pool `m-8b` with these replicas.
    pub fn with(replicas: &[&Replica]) -> Builder {
        let empty = Self::empty();
        empty.pool("m-8b", replicas).alias("gpt-fast", "m-8b")
    }

    /// A gateway with no pools but those the test adds.
    pub fn empty() -> Builder {
        Builder {
            pools: Vec::new(),
            aliases: Vec::new(),
            yaml: String::new(),
            sets: Vec::new(),
            config: None,
            args: Vec::new(),
            ready: 0,
        }
    }

    fn spawn(mut command: Command, directory: tempfile::TempDir, config: PathBuf, usage: PathBuf) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let log = collect(child.stderr.take().expect("piped"));
        let stdout = collect(child.stdout.take().expect("piped"));
        let (mut address, mut admin_address) = (None, None);
        let deadline = Instant::now() + PATIENCE;
        while address.is_none() || admin_address.is_none() {
            let gone = child.try_wait().expect("its state");
            let lines = log.lock().unwrap().clone();
            address = listener(&lines, "listening");
            admin_address = listener(&lines, "admin listening");
            assert!(gone.is_none(), "the gateway exited ({gone:?}):\n{}", lines.join("\n"));
            assert!(Instant::now() < deadline, "the gateway does not listen:\n{}", lines.join("\n"));
            thread::sleep(Duration::from_millis(5));
        }
        let (Some(address), Some(admin_address)) = (address, admin_address) else {
            unreachable!("checked above")
        };
        Self {
            child,
            address,
            admin_address,
            log,
            stdout,
            config,
            usage,
            exited: None,
            _directory: directory,
        }
    }

    /// Waits until `/readyz` says so and `n` replicas are ready.
    pub fn wait_ready(&self, n: usize) {
        eventually(PATIENCE, &format!("{n} ready replicas"), || {
            let ready = self.replicas().iter().filter(|replica| replica["state"] == "ready").count();
            ready >= n && (n == 0 || self.get("/readyz").status == 200)
        });
    }

    /// A new connection to the data port.
    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// One POST on a connection of its own.
    pub fn post(&self, path: &str, body: &str) -> Answer {
        let mut client = self.connect();
        client.post(path, body);
        client.read_answer()
    }

    /// One GET on a connection of its own.
    pub fn get(&self, path: &str) -> Answer {
        let mut client = self.connect();
        client.get(path);
        client.read_answer()
    }

    /// A chat request with one short message, streamed, answered whole.
    pub fn chat_stream(&self) -> Answer {
        self.post(CHAT, &chat_body(true))
    }

    /// The same, not streamed.
    pub fn chat(&self) -> Answer {
        self.post(CHAT, &chat_body(false))
    }

    /// One request to the admin listener, with the token.
    pub fn admin(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let bearer = format!("Bearer {ADMIN_TOKEN}");
        let bytes = post_bytes(path, &[("authorization", &bearer)], body.as_bytes());
        let bytes = [method.as_bytes(), &bytes[b"POST".len()..]].concat();
        let mut client = Client::connect(self.admin_address);
        client.send(bytes);
        client.read_answer()
    }

    /// The replicas as the admin listener lists them.
    pub fn replicas(&self) -> Vec<Value> {
        let answer = self.admin("GET", "/admin/replicas", None);
        assert_eq!(answer.status, 200, "{}", answer.describe());
        let list = answer.json();
        let list = if list.is_array() { list } else { list["replicas"].clone() };
        list.as_array().unwrap_or_else(|| panic!("no list of replicas: {}", answer.describe())).clone()
    }

    /// One replica as the admin listener shows it.
    pub fn replica(&self, replica: &Replica) -> Value {
        let same = |shown: &Value| {
            shown["url"].as_str().is_some_and(|url| url.trim_end_matches('/') == replica.url())
        };
        let found = self.replicas().into_iter().find(same);
        found.unwrap_or_else(|| panic!("{} is not listed", replica.url()))
    }

    /// The text of the admin listener's `/metrics`.
    pub fn metrics(&self) -> String {
        let mut client = Client::connect(self.admin_address);
        client.get("/metrics");
        let answer = client.read_answer();
        assert_eq!(answer.status, 200, "{}", answer.describe());
        answer.text()
    }

    /// The sum of a metric's series that carry these labels; 0 where there is none.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        metric_sum(&self.metrics(), name, labels)
    }

    /// Waits until nothing is in flight, by the gauge and by the replica list.
    pub fn wait_idle(&self) {
        eventually(PATIENCE, "nothing in flight", || {
            let none =
                |replica: &Value| replica["in_flight"] == json!(0) && replica["in_flight_tokens"] == json!(0);
            self.metric("expediter_in_flight", &[]) == 0.0 && self.replicas().iter().all(none)
        });
    }

    /// The usage records written so far.
    pub fn records(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.usage).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in record {line:?}"))
            })
            .collect()
    }

    /// Waits for `n` records; fails where there are more.
    pub fn wait_records(&self, n: usize) -> Vec<Value> {
        let records = eventually_some(PATIENCE, &format!("{n} usage records"), || {
            let records = self.records();
            (records.len() >= n).then_some(records)
        });
        assert_eq!(records.len(), n, "more records than requests: {records:#?}");
        records
    }

    /// The only record there is.
    pub fn wait_record(&self) -> Value {
        self.wait_records(1).remove(0)
    }

    /// Writes another configuration file, for a hot reload.
    pub fn rewrite_config(&self, text: &str) {
        let next = self.config.with_extension("next");
        std::fs::write(&next, text).expect("the file");
        std::fs::rename(&next, &self.config).expect("in its place");
    }

    /// The log so far, a line an entry.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// What it wrote to its standard output.
    pub fn stdout(&self) -> Vec<String> {
        self.stdout.lock().unwrap().clone()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name: `TERM`, `KILL`, `HUP`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits until it has exited.
    pub fn wait_exit(&mut self) -> ExitStatus {
        let status =
            eventually_some(PATIENCE, "the gateway exits", || self.child.try_wait().expect("its state"));
        self.exited = Some(status);
        status
    }

    /// SIGTERM, and the exit must be clean.
    pub fn stop(&mut self) {
        self.signal("TERM");
        let status = self.wait_exit();
        assert!(status.success(), "exit {:?}, signal {:?}", status.code(), status.signal());
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let died = self.exited.is_none() && self.child.try_wait().ok().flatten().is_some();
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log.lock().unwrap();
        let panicked = log.iter().any(|line| line.contains("panicked at"));
        if thread::panicking() {
            eprintln!("--- log of the gateway\n{}\n---", log.join("\n"));
        } else {
            assert!(!died, "the gateway died by itself:\n{}", log.join("\n"));
            assert!(!panicked, "the gateway panicked:\n{}", log.join("\n"));
        }
    }
}

/// The path of chat requests.
pub const CHAT: &str = "/v1/chat/completions";
/// The path of text completions.
pub const COMPLETIONS: &str = "/v1/completions";

/// A chat request with one short message.
pub fn chat_body(stream: bool) -> String {
    let messages = [json!({"role": "user", "content": "hi"})];
    json!({"model": "m-8b", "messages": messages, "max_tokens": 100, "stream": stream}).to_string()
}

/// A completion request whose prompt is `prompt_tokens` token ids.
pub fn tokens_body(prompt_tokens: usize, max_tokens: u64, stream: bool) -> String {
    let prompt: Vec<usize> = (1000..1000 + prompt_tokens).collect();
    json!({"model": "m-8b", "prompt": prompt, "max_tokens": max_tokens, "stream": stream}).to_string()
}

/// The sum of the series of `name` with all of `labels` in a Prometheus text.
pub fn metric_sum(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let mut sum = 0.0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let (found, shown) = series.split_once('{').unwrap_or((series, ""));
        let has = |(label, value): &(&str, &str)| shown.contains(&format!("{label}=\"{value}\""));
        if found == name && labels.iter().all(has) {
            sum += value.parse::<f64>().unwrap_or_else(|error| panic!("{error}: {line}"));
        }
    }
    sum
}

/// Gathers lines in the background, as they come.
fn collect(pipe: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let shared = Arc::clone(&lines);
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            shared.lock().unwrap().push(line);
        }
    });
    lines
}

/// The address in the log line whose message is exactly `message`.
fn listener(lines: &[String], message: &str) -> Option<SocketAddr> {
    lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|entry| {
        let fields = if entry["fields"].is_object() { &entry["fields"] } else { &entry };
        let is_it = fields["message"] == message;
        is_it.then(|| fields["address"].as_str()?.trim_start_matches("http://").parse().ok())?
    })
}

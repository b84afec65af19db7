//! Files that change under a running program.

use std::fs;

use expediter_gateway::settings::Settings;
use tempfile::TempDir;

use super::super::load::load;
use super::*;

/// A folder with a configuration file and what it names, watched.
struct Watched {
    folder: TempDir,
    watcher: Watcher,
}

impl Watched {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let source = Source { file: Some(folder.path().join("config.yaml")), ..Source::default() };
        Self { watcher: Watcher::new(load(source).unwrap()), folder }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.folder.path().join(name)).unwrap();
    }

    /// What the task does each second.
    fn tick(&mut self) -> Outcome {
        if self.watcher.has_changed() { self.watcher.reload(Trigger::Tick) } else { Outcome::Unchanged }
    }

    /// A tick that must apply: the replicas of the pool `m` after it, and the replica files out of use.
    fn applied(&mut self) -> (Vec<String>, usize) {
        match self.tick() {
            Outcome::Applied { settings, stale, .. } => (replicas(&settings), stale.len()),
            Outcome::Unchanged => panic!("unchanged"),
            Outcome::Refused { problems, .. } => panic!("{problems}"),
        }
    }

    /// A tick that must be refused: what is wrong, and the settings that come in force all the same.
    fn refused(&mut self) -> (String, Option<Arc<Settings>>) {
        match self.tick() {
            Outcome::Refused { problems, instead } => {
                (problems.to_string().replace(&self.folder.path().display().to_string(), "."), instead)
            }
            Outcome::Unchanged => panic!("unchanged"),
            Outcome::Applied { .. } => panic!("applied"),
        }
    }
}

fn replicas(settings: &Settings) -> Vec<String> {
    settings.pools["m"].replicas.iter().map(ToString::to_string).collect()
}

const WITH_LIST: (&str, &str) = ("config.yaml", "pools: { m: { replica_file: fleet.txt } }\n");

#[test]
fn a_file_that_stays_is_not_loaded_again_unless_somebody_asks() {
    let mut watched = Watched::new(&[WITH_LIST, ("fleet.txt", "http://a\n")]);
    assert!(matches!(watched.tick(), Outcome::Unchanged));
    assert!(matches!(watched.watcher.reload(Trigger::Hangup), Outcome::Applied { .. }));
    watched.write("fleet.txt", "http://a\n");
    assert!(matches!(watched.tick(), Outcome::Unchanged));
}

#[test]
fn a_replica_file_is_followed_and_its_last_good_list_kept() {
    let mut watched = Watched::new(&[WITH_LIST, ("fleet.txt", "http://a\n")]);
    watched.write("fleet.txt", "http://a\nhttp://b\n");
    assert_eq!(watched.applied(), (vec!["http://a".to_owned(), "http://b".to_owned()], 0));
    for broken in ["", "http://a\nhttp:/", "\u{0}"] {
        watched.write("fleet.txt", broken);
        assert_eq!(watched.applied().1, 1, "{broken:?}");
        assert!(matches!(watched.tick(), Outcome::Unchanged), "{broken:?} is reported once");
    }
    watched.remove("fleet.txt");
    assert_eq!(watched.applied(), (vec!["http://a".to_owned(), "http://b".to_owned()], 1));
    watched.write("fleet.txt", "http://c\n");
    assert_eq!(watched.applied(), (vec!["http://c".to_owned()], 0));
    watched.write("fleet.txt", "# none on purpose\n");
    assert_eq!(watched.applied(), (vec![], 0));
}

#[test]
fn a_change_counts_only_when_it_has_settled() {
    let mut watched = Watched::new(&[WITH_LIST, ("fleet.txt", "http://a\n")]);
    watched.write("fleet.txt", "http://b\nhttp://c");
    assert!(watched.watcher.has_changed());
    watched.write("fleet.txt", "http://b\nhttp://c:8000\n");
    assert!(matches!(watched.watcher.reload(Trigger::Tick), Outcome::Unchanged), "it is still being written");
    assert_eq!(watched.applied().0, ["http://b", "http://c:8000"]);
}

/// Kubernetes updates a mounted `ConfigMap` by turning one symlink to a new folder.
#[test]
fn a_turned_symlink_is_a_change() {
    let folder = TempDir::new().unwrap();
    for (name, url) in [("v1", "http://a\n"), ("v2", "http://b\n")] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("fleet.txt"), url).unwrap();
    }
    let turn_to = |target: &str| {
        let link = folder.path().join("data");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(target, link).unwrap();
    };
    turn_to("v1");
    let config = format!("pools.m.replica_file={}/data/fleet.txt", folder.path().display());
    let loaded = load(Source { sets: vec![config], ..Source::default() }).unwrap();
    let mut watched = Watched { watcher: Watcher::new(loaded), folder: TempDir::new().unwrap() };
    turn_to("v2");
    assert_eq!(watched.applied().0, ["http://b"]);
}

#[test]
fn a_file_with_mistakes_is_refused_whole_and_replicas_are_followed_all_the_same() {
    let mut watched = Watched::new(&[WITH_LIST, ("fleet.txt", "http://a\n")]);
    watched.write(
        "config.yaml",
        "pools: { m: { replica_file: fleet.txt } }\naliases: { a: b, b: a }\nshards: x\n",
    );
    let (problems, instead) = watched.refused();
    assert_eq!(
        problems,
        "./config.yaml:2:15: aliases.a: these aliases lead in a circle: `a` → `b` → `a`; let one of them name a pool\n\
         ./config.yaml:3:9: shards: a whole number is expected, not the text `x`; write a whole number"
    );
    assert!(instead.is_none());
    assert!(matches!(watched.tick(), Outcome::Unchanged), "mistakes are reported once");

    watched.write("fleet.txt", "http://b\n");
    assert_eq!(replicas(&watched.refused().1.unwrap()), ["http://b"]);
    watched.write("config.yaml", "pools: [\n");
    assert!(watched.refused().1.is_none());
    watched.write("fleet.txt", "http://c\n");
    assert_eq!(replicas(&watched.refused().1.unwrap()), ["http://c"]);
    watched.remove("config.yaml");
    assert!(watched.refused().1.is_none());
    watched.write("config.yaml", WITH_LIST.1);
    assert_eq!(watched.applied().0, ["http://c"]);
}

#[test]
fn a_mistake_is_gone_once_the_file_that_was_missing_is_there() {
    let mut watched = Watched::new(&[WITH_LIST, ("fleet.txt", "http://a\n")]);
    let config = format!("{}admin: {{ token_file: token }}\n", WITH_LIST.1);
    watched.write("config.yaml", &config);
    assert!(watched.refused().0.contains("admin.token_file: cannot read"));
    watched.write("token", "t-1\n");
    let Outcome::Applied { settings, .. } = watched.tick() else { panic!("not applied") };
    assert_eq!(settings.admin.token.as_ref().unwrap().reveal(), "t-1");
}

#[test]
fn what_needs_a_restart_is_named_as_long_as_it_differs_from_the_start() {
    let mut watched = Watched::new(&[WITH_LIST, ("fleet.txt", "http://a\n")]);
    let mut needs_restart = |config: &str| {
        watched.write("config.yaml", &format!("{}{config}", WITH_LIST.1));
        match watched.tick() {
            Outcome::Applied { needs_restart, .. } => needs_restart,
            Outcome::Unchanged | Outcome::Refused { .. } => panic!("not applied"),
        }
    };
    assert_eq!(needs_restart("ramp_ms: 5\n"), Vec::<&str>::new());
    assert_eq!(needs_restart("listen: 127.0.0.1:1\nshards: 3\n"), ["listen", "shards"]);
    assert_eq!(needs_restart("shards: 3\n"), ["shards"]);
    assert_eq!(needs_restart(""), Vec::<&str>::new());
}

#[tokio::test(start_paused = true)]
async fn the_task_publishes_what_changed_and_ends_with_its_owner() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, "pools: { m: { replicas: [http://a] } }\n").unwrap();
    let loaded = load(Source { file: Some(file.clone()), ..Source::default() }).unwrap();
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let mut settings = watch(loaded, &tracker, stop.clone()).unwrap();
    assert_eq!(replicas(&settings.borrow_and_update().clone()), ["http://a"]);

    fs::write(&file, "pools: { m: { replicas: [http://b] } }\n").unwrap();
    settings.changed().await.unwrap();
    assert_eq!(replicas(&settings.borrow_and_update().clone()), ["http://b"]);

    stop.cancel();
    tracker.close();
    tracker.wait().await;
    assert!(settings.changed().await.is_err());
}

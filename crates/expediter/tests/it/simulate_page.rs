//! The page of `expediter simulate` in a real browser.

use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the page's script in headless Chromium. Returns what became of the document, and what its console says.
fn rendered(page: &Path) -> (String, String) {
    let profile = tempfile::tempdir().expect("a directory");
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--window-size=1280,2400",
        ])
        .args(["--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .output()
        .expect("chromium runs: apt-get install chromium");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let console: Vec<String> =
        text(&output.stderr).lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    // What follows is the script and its data, not what they drew.
    let document = text(&output.stdout);
    let drawn = document.split("<script").next().unwrap_or_default().to_owned();
    (drawn, console.join("\n"))
}

/// Does what a visitor does: points at everything that is drawn, takes each policy away and brings it back. Each
/// tooltip is kept in the document, for the test to read.
const VISIT: &str = r##"<script>
const tips = [];
for (const drawn of document.querySelectorAll("main svg, main canvas, main .bar")) {
  const box = drawn.getBoundingClientRect();
  const middle = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true };
  drawn.dispatchEvent(new PointerEvent("pointermove", middle));
  tips.push($("tip").textContent);
  drawn.dispatchEvent(new PointerEvent("pointerleave", middle));
}
document.title = tips.join(" | ");
const names = () => document.querySelectorAll("#controls button");
for (let i = 0; i < names().length; i++) { names()[i].click(); names()[i].click(); }
</script>"##;

/// Simulates two policies at two rates, with one more argument.
fn page(folder: &Path, more: &[&str]) -> std::path::PathBuf {
    let page = folder.join("page.html");
    let output = Command::new(env!("CARGO_BIN_EXE_expediter"))
        .args(["simulate", "--workload", "capacity", "--set", "pools.m-8b.replicas=3"])
        .args(["--policy", "round_robin,least_tokens", "--duration", "10s", "--warm-up", "2s", "--html"])
        .arg(&page)
        .args(more)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    page
}

#[test]
#[ignore = "needs Chromium, which `cargo xtask test` installs before it runs this"]
fn the_page_draws_every_chart_without_a_complaint() {
    let folder = tempfile::tempdir().expect("a directory");
    // (arguments, lines in plots, bars)
    let cases: [(&[&str], usize, usize); 2] =
        [(&["--rate", "4,8"], 2 * 5, 2), (&["--find-ceiling"], 2 * 4, 2 * 2)];
    for (more, lines, bars) in cases {
        let page = page(folder.path(), more);
        let mut text = std::fs::read_to_string(&page).expect("the page");
        text.push_str(VISIT);
        std::fs::write(&page, text).expect("a file");
        let (document, console) = rendered(&page);
        assert_eq!(console, "", "{more:?}");
        assert_eq!(document.matches(r#"class="series""#).count(), lines, "{more:?}: lines");
        assert_eq!(document.matches(r#"class="bar""#).count(), bars, "{more:?}: bars");
        assert_eq!(document.matches("<canvas").count(), 2, "{more:?}: heat maps");
        assert_eq!(document.matches("<tr class=").count(), 2, "{more:?}: rows");
        for word in [
            "Time to first token",
            "SLO 400 ms",
            "Refusals",
            "within ",
            "replica 1",
            "at ",
            "expediter simulate --workload capacity",
        ] {
            assert!(document.contains(word), "{more:?}: `{word}` is not in the document");
        }
        assert!(
            !document.contains("NaN") && !document.contains(">undefined"),
            "{more:?}: a number is missing"
        );
    }
}

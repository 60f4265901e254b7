//! Pages in a browser without a screen. SKIP lines where there is none.

use std::path::Path;
use std::process::Command;

/// What the scripts of a page made of it, and what the browser complained of; `None`, with the reason printed, without a browser.
pub fn browsed(test: &str, dir: &Path, page: &Path, fragment: &str) -> Option<(String, Vec<String>)> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let is_there = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|it| it.status.success());
    let Some(browser) = names.into_iter().find(is_there) else {
        println!("SKIP: {test}: no Chromium");
        return None;
    };
    // It reports errors of scripts in its log.
    let options =
        ["100", browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--log-level=0"];
    let dump = ["--virtual-time-budget=10000", "--dump-dom"];
    let mut command = Command::new("timeout");
    command.args(options).arg(format!("--user-data-dir={}", dir.join("user").display())).args(dump);
    let output = command.arg(format!("file://{}{fragment}", page.display())).output().unwrap();
    if !output.status.success() || output.stdout.is_empty() {
        println!("SKIP: {test}: {browser} does not work here: {output:?}");
        return None;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let complaints = said.lines().filter(|line| line.contains("CONSOLE")).map(ToOwned::to_owned).collect();
    Some((String::from_utf8(output.stdout).unwrap(), complaints))
}

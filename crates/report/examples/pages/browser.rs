//! Headless Chromium, controlled through its DevTools protocol: JSON messages over pipes, each terminated by a zero
//! byte (<https://chromedevtools.github.io/devtools-protocol/>).

use serde_json::{json, Value};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::Duration;
use tempfile::TempDir;

pub type Res<T> = Result<T, Box<dyn Error>>;

/// Timeout of any operation, generous for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A browser with one page.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: String,
    last: u64,
    /// Events since the last call of `console`.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    pub fn start() -> Res<Self> {
        let profile = tempfile::tempdir()?;
        let flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"];
        // Chromium reads commands from file descriptor 3 and writes its messages to 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "chromium"])
            .args(flags)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (commands, answers) = (child.stdin.take().ok_or("no pipe")?, child.stdout.take().ok_or("no pipe")?);
        let messages = read(answers);
        let none = String::new();
        let mut browser =
            Self { child, commands, messages, session: none, last: 0, events: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))?["targetId"].take();
        let attach = json!({ "targetId": target, "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach)?;
        browser.session = attached["sessionId"].as_str().ok_or("no session")?.into();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}))?;
        }
        Ok(browser)
    }

    /// Calls a method and returns its result.
    pub fn call(&mut self, method: &str, parameters: Value) -> Res<Value> {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.commands.write_all(format!("{message}\0").as_bytes())?;
        loop {
            let mut message = self.next().map_err(|e| format!("{method}: {e}"))?;
            if message["id"] == self.last {
                return match message["error"]["message"].as_str() {
                    Some(error) => Err(format!("{method}: {error}").into()),
                    None => Ok(message["result"].take()),
                };
            }
            self.events.push(message);
        }
    }

    fn next(&self) -> Res<Value> {
        self.messages.recv_timeout(LIMIT).map_err(|_| "chromium does not answer".into())
    }

    /// Resizes the window; width and height in CSS pixels.
    pub fn resize(&mut self, width: usize, height: usize) -> Res<()> {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size).map(|_| ())
    }

    /// Loads a file, `name.html#fragment`, and waits until its charts are drawn.
    pub fn open(&mut self, file: &Path, fragment: &str) -> Res<()> {
        // Navigation that changes only the fragment would not reload the page.
        self.call("Page.navigate", json!({ "url": "about:blank" }))?;
        self.events.clear();
        let url = format!("file://{}{fragment}", std::fs::canonicalize(file)?.display());
        let loaded = self.call("Page.navigate", json!({ "url": url }))?;
        if let Some(error) = loaded["errorText"].as_str() {
            return Err(format!("{url}: {error}").into());
        }
        self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))",
        )?;
        self.is_drawn()
    }

    /// Waits until changes have been drawn on the screen.
    pub fn is_drawn(&mut self) -> Res<()> {
        let frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))";
        self.evaluate(frames).map(|_| ())
    }

    /// Evaluates a JavaScript expression and returns its value; waits for it if it is a promise.
    pub fn evaluate(&mut self, expression: &str) -> Res<Value> {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut done = self.call("Runtime.evaluate", parameters)?;
        match done["exceptionDetails"].as_object() {
            Some(_) => Err(exception(&done["exceptionDetails"]).into()),
            None => Ok(done["result"]["value"].take()),
        }
    }

    /// Takes a screenshot of a part of the page, or of the whole page: PNG in base64.
    pub fn picture(&mut self, part: Option<[f64; 4]>) -> Res<String> {
        let whole = "(e => [0, 0, e.clientWidth, e.scrollHeight])(document.documentElement)";
        let [x, y, width, height] = match part {
            Some(part) => part,
            None => serde_json::from_value(self.evaluate(whole)?)?,
        };
        let clip = json!({ "x": x, "y": y, "width": width, "height": height, "scale": 1 });
        self.data("Page.captureScreenshot", json!({ "clip": clip, "captureBeyondViewport": true }))
    }

    /// Prints the page: PDF in base64.
    pub fn pdf(&mut self) -> Res<String> {
        self.data("Page.printToPDF", json!({ "preferCSSPageSize": true }))
    }

    fn data(&mut self, method: &str, parameters: Value) -> Res<String> {
        let answer = self.call(method, parameters)?;
        Ok(answer["data"].as_str().ok_or("no data")?.into())
    }

    /// Returns messages of the page's console and of the browser since loading or the last call: exceptions, violations
    /// of the Content-Security-Policy, and other faults.
    pub fn console(&mut self) -> Vec<String> {
        let text = |event: Value| match event["method"].as_str()? {
            "Runtime.exceptionThrown" => Some(exception(&event["params"]["exceptionDetails"])),
            "Runtime.consoleAPICalled" => Some(event["params"]["args"].to_string()),
            "Log.entryAdded" => Some(event["params"]["entry"]["text"].to_string()),
            _ => None,
        };
        self.events.drain(..).filter_map(text).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session.clear();
        // Chromium ends its own processes; kill it if it hangs.
        if self.call("Browser.close", json!({})).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn exception(details: &Value) -> String {
    let text = details["exception"]["description"].as_str().or(details["text"].as_str());
    text.unwrap_or("an exception").to_owned()
}

/// Reads messages until the pipe is closed.
fn read(answers: ChildStdout) -> Receiver<Value> {
    let (to, from) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(answers).split(0).map_while(Result::ok) {
            let Ok(message) = serde_json::from_slice(&message) else { break };
            if to.send(message).is_err() {
                break;
            }
        }
    });
    from
}

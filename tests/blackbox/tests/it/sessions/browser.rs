//! A real browser without a window, driven through WebDriver.

use leasehold_testkit::{Child, Dir, Program, port, wait};
use serde_json::{Value, json};

use crate::cli_support::SOON;

/// The key under which WebDriver names elements.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// One window.
pub struct Browser {
    session: String,
    http: reqwest::Client,
    _driver: Child,
    _profile: Dir,
}

impl Browser {
    pub async fn start() -> Self {
        let profile = Dir::new("browser");
        let port = port::free();
        let mut driver = Program::new("chromedriver")
            .args([format!("--port={port}")])
            .env("HOME", profile.path())
            .env("TMPDIR", profile.path())
            .spawn();
        driver.wait_for_line("started successfully", SOON).await;
        let arguments = [
            "--headless=new",
            // Tests may run as root, where the browser's own sandbox cannot be used.
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--autoplay-policy=no-user-gesture-required",
        ];
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let http = reqwest::Client::new();
        let url = format!("http://127.0.0.1:{port}/session");
        let opened = http.post(&url).json(&capabilities).timeout(3 * SOON);
        let opened: Value = opened.send().await.unwrap().json().await.unwrap();
        let id = opened["value"]["sessionId"].as_str();
        let id = id.unwrap_or_else(|| panic!("no browser: {opened}"));
        Self {
            session: format!("{url}/{id}"),
            http,
            _driver: driver,
            _profile: profile,
        }
    }

    async fn command(&self, path: &str, body: Value) -> Value {
        let request = self
            .http
            .post(format!("{}{path}", self.session))
            .json(&body);
        let response = request.timeout(SOON).send().await.unwrap();
        let ok = response.status().is_success();
        let answer: Value = response.json().await.unwrap();
        assert!(ok, "{path}: {answer}");
        answer["value"].clone()
    }

    pub async fn open(&self, url: &str) {
        self.command("/url", json!({"url": url})).await;
    }

    async fn element(&self, id: &str) -> String {
        let by = json!({"using": "css selector", "value": format!("#{id}")});
        let element = self.command("/element", by).await;
        element[ELEMENT].as_str().unwrap().to_owned()
    }

    pub async fn write(&self, id: &str, text: &str) {
        let element = self.element(id).await;
        self.command(&format!("/element/{element}/clear"), json!({}))
            .await;
        let keys = json!({"text": text});
        self.command(&format!("/element/{element}/value"), keys)
            .await;
    }

    pub async fn click(&self, id: &str) {
        let element = self.element(id).await;
        self.command(&format!("/element/{element}/click"), json!({}))
            .await;
    }

    /// What a script in the page returns.
    pub async fn ask(&self, script: &str) -> Value {
        let body = json!({"script": format!("return {script};"), "args": []});
        self.command("/execute/sync", body).await
    }

    pub async fn until(&self, what: &str, script: &str) {
        let found = wait::within(SOON, async || {
            (self.ask(script).await == json!(true)).then_some(())
        })
        .await;
        if found.is_none() {
            let page = self.ask("document.body.innerText").await;
            let log = self.command("/se/log", json!({"type": "browser"})).await;
            panic!("{what} did not happen\n{page}\n{log}");
        }
    }

    /// Closes the window as a viewer does.
    pub async fn close_window(&self) {
        let closed = self.http.delete(format!("{}/window", self.session));
        closed.timeout(SOON).send().await.unwrap();
    }
}

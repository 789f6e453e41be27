//! A client of sessions as a process of its own: it sends heartbeats and prints each status.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::ExitCode,
    thread,
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, token, session, every_ms] = arguments.as_slice() else {
        eprintln!("usage: session-client ADDRESS TOKEN SESSION EVERY_MS");
        return ExitCode::from(2);
    };
    let Ok(every_ms) = every_ms.parse() else {
        eprintln!("EVERY_MS: expected a number");
        return ExitCode::from(2);
    };
    loop {
        match beat(address, token, session) {
            Ok(status) => {
                println!("heartbeat {status}");
                if status == "410" {
                    return ExitCode::SUCCESS;
                }
            }
            Err(error) => println!("heartbeat failed: {error}"),
        }
        thread::sleep(Duration::from_millis(every_ms));
    }
}

fn beat(address: &str, token: &str, session: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    write!(
        stream,
        "POST /api/v3/sessions/{session}/heartbeat HTTP/1.1\r\nhost: {address}\r\n\
         authorization: Bearer {token}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split(' ').nth(1).unwrap_or_default().to_owned())
}

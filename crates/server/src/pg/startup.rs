//! The steps from a socket to a session: declines encryption, passes cancellations on, reads the startup
//! packet, and greets the client.

use std::{io, time::Duration};

use pgwire::messages::{
    PgWireBackendMessage as Backend,
    startup::{
        Authentication, BackendKeyData, NegotiateProtocolVersion, ParameterStatus, SecretKey, Startup,
    },
};
use quorate_sql::{
    error::{Result, SqlError, code},
    session::Session,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, tcp},
    sync::watch,
    time::timeout,
};

use super::{
    connection::Connection,
    frame::{Frames, Opening},
    handover::HandedClient,
    output::OutputBuffer,
    server::Server,
};

/// Longest time within which a client must send its startup packet.
const STARTUP: Duration = Duration::from_secs(60);

/// Waits for the signal that the server stops.
async fn stop(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender of the signal is gone, so the server has stopped.
    drop(stopped.wait_for(|stopped| *stopped).await);
}

/// Serves a client until the client or the server ends the connection. Returns the connection if the
/// connection is handed over to another process.
pub(super) async fn serve(
    server: &Server,
    stream: TcpStream,
    stopped: watch::Receiver<bool>,
) -> io::Result<Option<HandedClient>> {
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    let mut frames = Frames::new(read);
    let mut output = OutputBuffer::new(write, &server.metrics);
    let startup = {
        let opening = server.openings.begin();
        let opened = tokio::select! {
            biased;
            opened = timeout(STARTUP, open(&mut frames, &mut output, server)) => opened,
            () = opening.displaced.notified() => return Ok(None),
            () = stop(stopped) => return Ok(None),
        };
        let Ok(opened) = opened else { return Ok(None) };
        let Some(startup) = opened? else { return Ok(None) };
        startup
    };
    let Ok(_permit) = server.connections.try_acquire() else {
        output.fatal(&SqlError::new("53300", "sorry, too many clients already"));
        return output.flush().await.map(|()| None);
    };
    let is_ready = server.backend.is_ready() || server.is_successor() && server.becomes_ready().await;
    if !is_ready {
        let error = SqlError::new("57P03", "the gateway is starting; it has not heard from the cluster yet");
        output.fatal(
            &error.hint("Connect again in a moment; `quorate status` shows whether the cluster is well."),
        );
        return output.flush().await.map(|()| None);
    }
    let registration = server.sessions.register();
    let session = match begin(&startup, server, registration.pid) {
        Ok(session) => session,
        Err(error) => {
            output.fatal(&error);
            return output.flush().await.map(|()| None);
        }
    };
    let mut connection = Connection::new(frames, output, session, &registration.cancel);
    connection.greet(&startup, registration.pid, registration.secret);
    connection.run().await?;
    if connection.handed_over { connection.hand_over(registration.secret).map(Some) } else { Ok(None) }
}

/// Reads packets up to the startup packet. Returns `None` if the connection ends before the startup packet.
async fn open(
    frames: &mut Frames<tcp::OwnedReadHalf>,
    output: &mut OutputBuffer<'_>,
    server: &Server,
) -> io::Result<Option<Startup>> {
    loop {
        match frames.opening().await? {
            Opening::Encryption => {
                output.stream.write_all(b"N").await?;
            }
            Opening::Cancel(request) => {
                if let Some(secret) = request.secret_key.as_i32() {
                    server.sessions.cancel(request.pid, secret);
                }
                return Ok(None);
            }
            Opening::Startup(startup) => return Ok(Some(startup)),
            Opening::Closed => return Ok(None),
            Opening::Malformed(what) => {
                server.metrics.malformed_connections.inc();
                tracing::debug!(what, "a client sent an invalid first packet to the SQL door");
                output.fatal(&SqlError::new(
                    code::PROTOCOL_VIOLATION,
                    format!("invalid startup packet: {what}"),
                ));
                output.flush().await?;
                return Ok(None);
            }
        }
    }
}

/// Creates the session that a startup packet asks for.
fn begin(startup: &Startup, server: &Server, pid: i32) -> Result<Session> {
    let user = startup
        .parameters
        .get("user")
        .filter(|user| !user.is_empty())
        .ok_or_else(|| SqlError::new("28000", "no PostgreSQL user name specified in startup packet"))?;
    if startup
        .parameters
        .get("replication")
        .is_some_and(|value| !matches!(value.as_str(), "false" | "off" | "0"))
    {
        return Err(SqlError::unsupported("a replication connection"));
    }
    let database = startup.parameters.get("database").filter(|name| !name.is_empty()).unwrap_or(user);
    let mut session =
        Session::new(server.backend.clone(), server.cache.clone(), user.clone(), database.clone(), pid);
    for (name, value) in &startup.parameters {
        match name.as_str() {
            "user" | "database" | "replication" => {}
            "options" => {
                for (name, value) in options(value) {
                    session.start_with(&name, &value)?;
                }
            }
            name if name.starts_with("_pq_.") => {}
            name => session.start_with(name, value)?,
        }
    }
    Ok(session)
}

/// Returns the settings in the startup packet's `options`: `-c name=value` and `--name=value`. A backslash
/// escapes a space.
fn options(text: &str) -> Vec<(String, String)> {
    let mut words = vec![String::new()];
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => words.last_mut().expect("never empty").extend(characters.next()),
            c if c.is_whitespace() => words.push(String::new()),
            c => words.last_mut().expect("never empty").push(c),
        }
    }
    words
        .iter()
        .map(|word| word.strip_prefix("-c").or_else(|| word.strip_prefix("--")).unwrap_or(word))
        .filter_map(|word| word.split_once('='))
        .map(|(name, value)| (name.replace('-', "_"), value.to_owned()))
        .collect()
}

impl Connection<'_> {
    fn greet(&mut self, startup: &Startup, pid: i32, secret: i32) {
        const NEWEST_MINOR: u16 = 2;
        let extensions: Vec<String> =
            startup.parameters.keys().filter(|name| name.starts_with("_pq_.")).cloned().collect();
        if startup.protocol_number_minor > NEWEST_MINOR || !extensions.is_empty() {
            let newest = (3 << 16) | i32::from(NEWEST_MINOR.min(startup.protocol_number_minor));
            self.output
                .put(Backend::NegotiateProtocolVersion(NegotiateProtocolVersion::new(newest, extensions)));
        }
        self.output.put(Backend::Authentication(Authentication::Ok));
        for (name, value) in self.session.parameters() {
            self.output.put(Backend::ParameterStatus(ParameterStatus::new(name, value)));
        }
        self.output.put(Backend::BackendKeyData(BackendKeyData::new(pid, SecretKey::I32(secret))));
        self.notices();
        self.ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startup_options_are_split_at_spaces() {
        let expected = vec![
            ("statement_timeout".to_owned(), "5s".to_owned()),
            ("application_name".to_owned(), "a b".to_owned()),
        ];
        assert_eq!(options("-c statement_timeout=5s --application-name=a\\ b"), expected);
        assert_eq!(options("-cstatement_timeout=5s -c application_name=a\\ b"), expected);
    }
}

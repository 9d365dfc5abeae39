//! A loopback HTTP server that answers each request with the bytes a test wrote down.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// The longest a test waits for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What the server does with one request, in order.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Send(Vec<u8>),
    /// Again and again, until the client hangs up.
    SendForEver(Vec<u8>),
    /// Lets what was sent arrive as a chunk of its own.
    Pause(Duration),
    /// Waits until the client hangs up.
    AwaitHangUp,
    Close,
}

/// A request as it arrived.
#[derive(Debug)]
pub(crate) struct Received {
    /// The request line and headers; names in lower case.
    pub(crate) head: Vec<String>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

#[derive(Debug)]
pub(crate) enum Event {
    Request(Received),
    HungUp,
}

pub(crate) struct Server {
    pub(crate) url: String,
    events: mpsc::UnboundedReceiver<Event>,
    connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Answers = Arc<Mutex<Vec<Vec<Step>>>>;

impl Server {
    /// Gives the answers in order, on whichever connection the requests come.
    pub(crate) async fn answering(answers: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/chat/completions", listener.local_addr().unwrap());
        let (sender, events) = mpsc::unbounded_channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let answers: Answers = Arc::new(Mutex::new(answers.into_iter().rev().collect()));
        let counter = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(socket, Arc::clone(&answers), sender.clone()));
            }
        });
        Self { url, events, connections, task }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) async fn event(&mut self) -> Event {
        tokio::time::timeout(PATIENCE, self.events.recv()).await.expect("an event in time").unwrap()
    }

    pub(crate) async fn request(&mut self) -> Received {
        match self.event().await {
            Event::Request(received) => received,
            Event::HungUp => panic!("hung up before a request came"),
        }
    }
}

async fn serve(mut socket: TcpStream, answers: Answers, events: mpsc::UnboundedSender<Event>) {
    socket.set_nodelay(true).unwrap();
    while let Some((head, body)) = read_request(&mut socket).await {
        let _ = events.send(Event::Request(Received { head, body }));
        let steps = answers.lock().unwrap().pop().expect("an answer for this request");
        for step in steps {
            match step {
                // The client may leave early, and that is often the point.
                Step::Send(bytes) => drop(socket.write_all(&bytes).await),
                Step::SendForEver(bytes) => while socket.write_all(&bytes).await.is_ok() {},
                Step::Pause(length) => tokio::time::sleep(length).await,
                Step::AwaitHangUp => {
                    let _ = socket.read(&mut [0; 64]).await;
                    let _ = events.send(Event::HungUp);
                    return;
                }
                Step::Close => return,
            }
        }
    }
}

/// `None` at the end of the connection, and for what is no HTTP.
async fn read_request(socket: &mut TcpStream) -> Option<(Vec<String>, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.ok()?);
    }
    let text = String::from_utf8(head).ok()?;
    let lines: Vec<String> = text
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| match line.split_once(": ") {
            Some((name, value)) => format!("{}: {value}", name.to_ascii_lowercase()),
            None => line.to_owned(),
        })
        .collect();
    let length = lines.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    socket.read_exact(&mut body).await.ok()?;
    Some((lines, body))
}

/// A whole answer, framed by its length.
pub(crate) fn answer(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Vec<Step> {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    vec![Step::Send([head.as_bytes(), body].concat())]
}

pub(crate) fn json(status: u16, body: &str) -> Vec<Step> {
    answer(status, "content-type: application/json\r\n", body)
}

/// A whole event stream in chunks of its own, each sent apart.
pub(crate) fn events(chunks: &[&str]) -> Vec<Step> {
    let mut steps = unfinished_events(chunks);
    steps.push(Step::Send(b"0\r\n\r\n".to_vec()));
    steps
}

/// As [`events`], without the last chunk that ends the body.
pub(crate) fn unfinished_events(chunks: &[&str]) -> Vec<Step> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
        transfer-encoding: chunked\r\n\r\n";
    let mut steps = vec![Step::Send(head.as_bytes().to_vec())];
    for chunk in chunks {
        steps.push(Step::Pause(Duration::from_millis(5)));
        steps.push(Step::Send(format!("{:x}\r\n{chunk}\r\n", chunk.len()).into_bytes()));
    }
    steps
}

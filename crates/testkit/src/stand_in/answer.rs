//! What a stand-in says when nothing goes wrong: the shapes of OpenAI's API, filled with an echo.

use serde_json::{Value, json};

/// What an endpoint of the API is asked.
#[derive(Debug)]
pub(super) struct Ask {
    endpoint: Endpoint,
    model: Value,
    /// Every text of the request, for the token count.
    prompt: String,
    /// What to answer.
    echo: String,
    /// Whether server-sent events are asked for.
    pub(super) stream: bool,
    include_usage: bool,
}

/// The endpoints that are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

impl Endpoint {
    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/completions" => Some(Self::Completions),
            _ => None,
        }
    }
}

impl Ask {
    /// Reads a request's body; the error says what is wrong with it, for the caller.
    pub(super) fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Self, String> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| format!("could not parse the JSON body: {error}"))?;
        let (prompt, echo) = match endpoint {
            Endpoint::Chat => {
                let messages = body["messages"].as_array().filter(|messages| !messages.is_empty());
                let messages = messages.ok_or("`messages` must be an array with a message in it")?;
                let prompt = messages.iter().map(|message| text(&message["content"])).collect::<Vec<_>>();
                let last_user = messages.iter().rposition(|message| message["role"] == "user");
                let echo = prompt[last_user.unwrap_or(messages.len() - 1)].clone();
                (prompt.join(" "), echo)
            }
            Endpoint::Completions => {
                let prompt = body.get("prompt").map(text).ok_or("`prompt` is required")?;
                (prompt.clone(), prompt)
            }
        };
        Ok(Self {
            endpoint,
            model: body["model"].as_str().unwrap_or("stand-in").into(),
            prompt,
            echo,
            stream: body["stream"] == true,
            include_usage: body["stream_options"]["include_usage"] == true,
        })
    }

    /// The answer as one object. `id` is a number of this answer.
    pub(super) fn whole(&self, id: u64) -> Value {
        let mut choice = json!({ "index": 0, "finish_reason": "stop" });
        match self.endpoint {
            Endpoint::Chat => choice["message"] = json!({ "role": "assistant", "content": self.echo }),
            Endpoint::Completions => choice["text"] = self.echo.clone().into(),
        }
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let mut answer = self.envelope(id, object, vec![choice]);
        answer["usage"] = self.usage();
        answer
    }

    /// The answer as server-sent events, one for each word, with `[DONE]` at the end. `cut` leaves out
    /// the second half.
    pub(super) fn events(&self, id: u64, cut: bool) -> Vec<String> {
        let mut chunks: Vec<Value> =
            self.echo.split_inclusive(char::is_whitespace).map(|word| self.chunk(id, word, None)).collect();
        if cut {
            chunks.truncate(chunks.len().div_ceil(2));
        } else {
            chunks.push(self.chunk(id, "", Some("stop")));
            if self.include_usage {
                let mut last = self.envelope(id, self.chunk_object(), Vec::new());
                last["usage"] = self.usage();
                chunks.push(last);
            }
        }
        let mut events: Vec<String> = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
        if !cut {
            events.push("data: [DONE]\n\n".to_owned());
        }
        events
    }

    fn chunk(&self, id: u64, word: &str, finish_reason: Option<&str>) -> Value {
        let mut choice = json!({ "index": 0, "finish_reason": finish_reason });
        match self.endpoint {
            Endpoint::Chat if finish_reason.is_some() => choice["delta"] = json!({}),
            Endpoint::Chat => choice["delta"] = json!({ "role": "assistant", "content": word }),
            Endpoint::Completions => choice["text"] = word.into(),
        }
        self.envelope(id, self.chunk_object(), vec![choice])
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn envelope(&self, id: u64, object: &str, choices: Vec<Value>) -> Value {
        let prefix = match self.endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completions => "cmpl",
        };
        // `created` is a time, which a stand-in has no use for: the same request gets the same answer.
        json!({
            "id": format!("{prefix}-{id}"), "object": object, "created": 0, "model": self.model,
            "choices": choices,
        })
    }

    fn usage(&self) -> Value {
        let (prompt, completion) = (words(&self.prompt), words(&self.echo));
        json!({
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        })
    }
}

/// An error as the API reports them.
pub(super) fn error(message: &str) -> Value {
    json!({
        "error": { "message": message, "type": "invalid_request_error", "param": null, "code": null },
    })
}

/// The text of a content, which is a string or an array of strings or of parts with a `text`.
fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(text).collect(),
        Value::Object(part) => part.get("text").and_then(Value::as_str).unwrap_or_default().to_owned(),
        _ => String::new(),
    }
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

use proptest::prelude::*;

use super::*;

fn whole(body: &[u8]) -> EventStream {
    let mut stream = EventStream::default();
    stream.finish(body);
    stream
}

fn cut(body: &[u8]) -> EventStream {
    let mut stream = EventStream::default();
    stream.advance(body);
    stream
}

#[test]
fn a_terminator_is_a_whole_event() {
    for body in [
        &b"data: [DONE]\n\n"[..],
        b"data:[DONE]\n\n",
        b"data: [DONE]\r\n\r\n",
        b"data: [DONE]\r\r",
        b"data: {}\n\ndata: [DONE]\n\n: bye\n\n",
        b"\xef\xbb\xbfdata: [DONE]\n\n",
        b"event: done\nid: 7\ndata: [DONE]\n\n",
        b"data: {}\n\ndata: [DONE]\n",
        b"data: {}\n\ndata: [DONE]",
    ] {
        assert!(whole(body).is_terminated(), "{}", body.escape_ascii());
    }
}

#[test]
fn other_mentions_are_no_terminator() {
    for body in [
        &b""[..],
        b"data: {}\n\n",
        b"data: {\"text\":\"data: [DONE]\"}\n\n",
        b"data: text\ndata: [DONE]\n\n",
        b"data: [DONE]\ndata: text\n\n",
        b"data: [DONE] or not\n\n",
        b"data:  [DONE]\n\n",
        b"data: [DONE\n\n",
        b": data: [DONE]\n\n",
        b"[DONE]\n\n",
        b" data: [DONE]\n\n",
        b"id: [DONE]\n\n",
        b"data: [DONE]\n\ndata: {\"more\":1}\n\n",
    ] {
        assert!(!whole(body).is_terminated(), "{}", body.escape_ascii());
    }
}

#[test]
fn an_unfinished_line_of_a_cut_body_does_not_count() {
    assert!(!cut(b"data: {}\n\ndata: [DONE]").is_terminated());
    assert!(cut(b"data: {}\n\ndata: [DONE]\n").is_terminated());
    assert!(cut(b"data: {}\n\ndata: [DONE]\r").is_terminated());
}

#[test]
fn the_last_usage_counts() {
    let body = b"data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n\
        data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":9}}\n\n\
        data: {\"usage\":null}\n\ndata: not json\n\ndata: [DONE]\n\n";
    assert_eq!(whole(body).usage(), Some(Usage { prompt_tokens: 1, completion_tokens: 9 }));
}

#[test]
fn a_reported_error_is_found() {
    for (body, code, message) in [
        ("data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\ndata: [DONE]\n\n", Some(400), Some("no")),
        ("data: {\"error\":{\"message\":\"no\",\"code\":\"server_error\"}}\n\n", None, Some("no")),
        ("data: {\"error\":\"overloaded\"}\n\n", None, Some("overloaded")),
        ("data: {\"error\":{}}\n\n", None, None),
        ("event: error\ndata: oops\n\n", None, None),
        ("data: {\ndata: \"error\":{\"status\":503}}\n\n", Some(503), None),
        ("data: {\"error\":\"first\"}\n\ndata: {\"error\":\"second\"}\n\n", None, Some("first")),
    ] {
        let wanted = StreamError { code, message: message.map(str::to_owned) };
        assert_eq!(whole(body.as_bytes()).into_error(), Some(wanted), "{body}");
    }
}

#[test]
fn no_error_is_made_up() {
    for body in [
        "data: {\"error\":null}\n\n",
        "data: {\"error\":\"\"}\n\n",
        "data: {\"text\":\"error\"}\n\n",
        "data: {\"choices\":[{\"error\":{}}]}\n\n",
        "event: error\n\ndata: {}\n\n",
        "data: error\n\n",
    ] {
        assert_eq!(whole(body.as_bytes()).into_error(), None, "{body}");
    }
}

proptest! {
    #[test]
    fn it_does_not_matter_where_chunks_end(
        parts in proptest::collection::vec(
            prop_oneof![
                Just("data: [DONE]"), Just("data:"), Just(" [DONE]"), Just("\n"), Just("\r\n"), Just("\r"),
                Just("\n\n"), Just("data: {\"usage\":{\"prompt_tokens\":2}}"), Just("x"), Just(":"),
                Just("data: {\"error\":\"e\"}"),
            ],
            0..12,
        ),
        size in 1..8_usize,
    ) {
        let body = parts.concat().into_bytes();
        let mut pieces = EventStream::default();
        for end in (0..body.len()).step_by(size) {
            pieces.advance(&body[..end]);
        }
        pieces.finish(&body);
        let once = whole(&body);
        prop_assert_eq!(pieces.is_terminated(), once.is_terminated());
        prop_assert_eq!(pieces.usage(), once.usage());
        prop_assert_eq!(pieces.into_error(), once.into_error());
    }

    #[test]
    fn any_bytes_are_survived(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        whole(&body);
        cut(&body);
    }
}

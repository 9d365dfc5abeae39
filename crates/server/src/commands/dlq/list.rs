//! `leasehold dlq list`: the dead letters of a queue, with why they died.

use leasehold_store::{MessageState, PeekedMessage};

use crate::{
    api::PeekedJson,
    cli::Global,
    commands::peek::Pages,
    exit,
    output::{json_lines, print},
    table::{self, Align},
};

/// Characters of a description that a table shows.
const DESCRIPTION_WIDTH: usize = 60;

/// List dead letters, with the reason
///
/// In sequence order. --json shows them whole, as leasehold peek does.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold dlq list orders
  leasehold dlq list orders --json --max 1000 | jq -r .dead_letter_reason | sort | uniq -c")]
pub(crate) struct Args {
    /// The queue or subscription
    queue: String,
    /// Dead letters at most
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    max: u64,
    /// As JSON lines
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let state = Some(MessageState::Dead);
    let mut pages = Pages { store: &store, queue: &args.queue, from: 0, state, left: args.max };
    let mut rows = Vec::new();
    let mut found = 0;
    while let Some(letters) = pages.next().await? {
        found += letters.len() as u64;
        if args.json {
            print(&json_lines(letters.iter().map(PeekedJson::of))?)?;
        } else {
            rows.extend(letters.iter().map(row));
        }
    }
    if found == 0 {
        eprintln!("queue \"{}\" has no dead letters", args.queue);
        return Ok(exit::OK);
    }
    let code = print(&page(&rows))?;
    if found == args.max {
        eprintln!("only the first {found} are shown: there may be more, with --max");
    }
    Ok(code)
}

fn row(letter: &PeekedMessage) -> [String; 6] {
    let description = letter.dead_letter_description.as_deref().unwrap_or_default();
    let mut shown: String = description.chars().take(DESCRIPTION_WIDTH).map(printable).collect();
    if description.chars().nth(DESCRIPTION_WIDTH).is_some() {
        shown.push('…');
    }
    [
        letter.seq.to_string(),
        letter.message_id.chars().map(printable).collect(),
        letter.dead_at.map_or_else(String::new, |at| format!("{at:.0}")),
        letter.delivery_count.to_string(),
        letter.dead_letter_reason.clone().unwrap_or_default().chars().map(printable).collect(),
        shown,
    ]
}

/// A line of a table stays one.
fn printable(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

fn page(rows: &[[String; 6]]) -> String {
    let columns = [
        ("SEQ", Align::Right),
        ("MESSAGE ID", Align::Left),
        ("DEAD SINCE", Align::Left),
        ("DELIVERIES", Align::Right),
        ("REASON", Align::Left),
        ("DESCRIPTION", Align::Left),
    ];
    table::draw("", columns, rows)
}

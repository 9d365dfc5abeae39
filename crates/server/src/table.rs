//! Columns under their names.

/// How a column is aligned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// The table, each line behind `indent`; nothing where there is no row.
pub(crate) fn draw<const N: usize>(
    indent: &str,
    columns: [(&str, Align); N],
    rows: &[[String; N]],
) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let names = columns.map(|(name, _)| name.to_owned());
    let mut widths = [0; N];
    for row in std::iter::once(&names).chain(rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut drawn = String::new();
    for row in std::iter::once(&names).chain(rows) {
        let cells: Vec<String> = row
            .iter()
            .zip(columns)
            .zip(widths)
            .map(|((cell, (_, align)), width)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            })
            .collect();
        drawn.push_str(indent);
        drawn.push_str(cells.join("  ").trim_end());
        drawn.push('\n');
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let columns = [("KEY", Align::Left), ("USED", Align::Right), ("", Align::Left)];
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let rows = [row(["a", "12345", ""]), row(["ünï", "1", "SATURATED"])];
        assert_eq!(draw(" ", columns, &rows), " KEY   USED\n a    12345\n ünï      1  SATURATED\n");
        assert_eq!(draw(" ", columns, &[]), "");
    }
}

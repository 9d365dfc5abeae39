//! What the turns showed: as a table, over time, as CSV, and as a picture.

mod course;
mod plot;
mod table;
#[cfg(test)]
mod tests;

use crate::{
    system::Name,
    turn::{Measured, Turn},
};

pub(crate) use course::course;
pub(crate) use plot::picture;
pub(crate) use table::{csv, table};

/// A system at a point, and what its turns showed.
pub(crate) struct Entry {
    /// Empty where there is only one.
    point: String,
    name: Name,
    pub(crate) turns: Vec<Turn>,
}

impl Entry {
    pub(crate) fn new(point: &str, name: Name) -> Self {
        Self { point: point.to_owned(), name, turns: Vec::new() }
    }

    /// System and point.
    pub(crate) fn text(&self) -> String {
        match self.point.as_str() {
            "" => self.name.text().to_owned(),
            point => format!("{}, {point}", self.name.text()),
        }
    }

    /// The median of one figure over the turns that have it.
    fn median(&self, figure: impl Fn(&Turn) -> Option<f64>) -> Option<f64> {
        Some(median(self.turns.iter().filter_map(figure))).filter(|median| !median.is_nan())
    }

    /// As [`Entry::median`], of the whole turns.
    fn median_of_whole(&self, figure: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
        self.median(|turn| figure(&turn.whole))
    }

    fn per_second(&self) -> f64 {
        median(self.turns.iter().map(|turn| turn.whole.per_second()))
    }

    /// The median over the rounds of its rate by the other's in the same round.
    fn share_of(&self, other: &Self) -> f64 {
        let turns = self.turns.iter().zip(&other.turns);
        median(turns.map(|(turn, other)| turn.whole.per_second() / other.whole.per_second()))
    }

    /// Of Leasehold's rate at the same point.
    fn share_of_leasehold(&self, entries: &[Self]) -> Option<f64> {
        let all = || entries.iter().filter(|other| other.point == self.point);
        let leasehold = all().find(|other| other.name.is_leasehold())?;
        (all().count() > 1 && self.requests() > 0).then(|| self.share_of(leasehold))
    }

    /// Of its own rate at the first point.
    fn share_of_first(&self, entries: &[Self]) -> Option<f64> {
        let mut own = entries.iter().filter(|other| other.name == self.name);
        let first = own.next()?;
        own.next().map(|_| self.share_of(first))
    }

    fn requests(&self) -> u64 {
        self.turns.iter().map(|turn| turn.whole.requests).sum()
    }
}

/// The upper one of two in the middle; none is not a number.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

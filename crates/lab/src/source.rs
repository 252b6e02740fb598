//! The values that the sources give, read from `sources/SOURCE.toml`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

/// The values of one figure in its source, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values(BTreeMap<String, f64>);

impl Values {
    /// Returns the value of this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }
}

impl FromIterator<(String, f64)> for Values {
    fn from_iter<T: IntoIterator<Item = (String, f64)>>(values: T) -> Self {
        Values(values.into_iter().collect())
    }
}

/// Returns the text of a source's file.
fn text(source: &str) -> Result<&'static str> {
    Ok(match source {
        "000" => include_str!("../sources/000.toml"),
        "002" => include_str!("../sources/002.toml"),
        "003" => include_str!("../sources/003.toml"),
        "004" => include_str!("../sources/004.toml"),
        _ => bail!(
            "there is no source {source} whose values the lab has; `quorate lab list` lists all figures"
        ),
    })
}

/// Returns the source's values of the figure `SOURCE/FIGURE`.
pub fn values(id: &str) -> Result<Values> {
    let (source, figure) = id.split_once('/').with_context(|| {
        format!("the figure '{id}' must be written as SOURCE/FIGURE, as in 002/figure-16")
    })?;
    let whole: toml::Table = text(source)?.parse()?;
    let table = whole.get(figure).and_then(toml::Value::as_table);
    let table = table.with_context(|| format!("the values of source {source} contain no figure {figure}"))?;
    let number = |(name, value): (&String, &toml::Value)| {
        let number = value.as_float().or_else(|| value.as_integer().map(|value| value as f64));
        Ok((
            name.clone(),
            number.with_context(|| format!("the value {name} of figure {id} is not a number"))?,
        ))
    };
    table.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_figure_has_the_values_that_its_claims_name() {
        for figure in crate::figures::ALL {
            let values = super::values(figure.id()).expect("its source has it");
            for claim in figure.claims() {
                let named = match claim.compared {
                    crate::claim::Compared::AtMost(name) | crate::claim::Compared::AtLeast(name, _) => name,
                    crate::claim::Compared::Above(_) => continue,
                };
                assert!(values.get(named).is_some(), "{}: {named}", figure.id());
            }
        }
    }
}

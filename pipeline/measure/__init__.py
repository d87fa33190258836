"""The instrument that the stages share."""

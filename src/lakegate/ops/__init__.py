"""Operations on a pipeline for people: checks, inspection, and actions on turns, tables and requests."""

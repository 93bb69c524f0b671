CREATE TABLE engagement (engagement_id text PRIMARY KEY, alias_id text, person_id text);

"""Text that may be shown: without secrets of settings or messages, and without control characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegate.errors import Unavailable
from lakegate.redaction import HIDDEN, message, printable, setting, without_values

SECRET = "hunter2"
SECRETS = {
    "spark.ssl.keyPassword": SECRET,
    "spark.authenticate.secret": SECRET,
    "spark.hadoop.fs.s3a.access.key": SECRET,
    "spark.hadoop.fs.s3a.secret.key": SECRET,
    "spark.hadoop.fs.s3a.session.token": SECRET,
    "spark.hadoop.fs.s3a.encryption.key": SECRET,
    "spark.hadoop.fs.s3a.server-side-encryption.key": SECRET,
    "spark.hadoop.fs.azure.account.key.mine.dfs.core.example": SECRET,
    "spark.hadoop.fs.azure.sas.box.mine.blob.core.example": f"?sv=2024&sig={SECRET}",
    "spark.hadoop.fs.azure.sas.fixed.token.mine": SECRET,
    "spark.sql.catalog.mine.uri": f"https://host/x?sig={SECRET}",
    "spark.hadoop.javax.jdo.option.ConnectionPassword": SECRET,
    "spark.mail.pass": SECRET,
    "spark.kubernetes.authenticate.oauthToken": SECRET,
    "kafka.sasl.jaas.config": f'x required username="u" password="{SECRET}";',
    "kafka.ssl.key.password": SECRET,
    "kafka.ssl.keystore.key": SECRET,
    "kafka.ssl.keystore.certificate.chain": SECRET,
    "kafka.ssl.truststore.password": SECRET,
    "kafka.ssl.key.pem": SECRET,
    "ssl.key.pem": SECRET,
    "keystore.key": SECRET,
    "sasl.oauthbearer.client.secret": SECRET,
    "basic.auth.user.info": f"me:{SECRET}",
    "my.pin": "1234567890123",
    "license": SECRET,
    "spark.my.url": f"https://me:{SECRET}@host/",
    "spark.driver.extraJavaOptions": f"-Xmx1g -Ddb.pw={SECRET} -Dx.secret={SECRET}",
    "spark.executor.extraJavaOptions": f"-javaagent:/x.jar=key={SECRET}",
    "spark.driver.defaultJavaOptions": f"-Da='{SECRET} b'",
    "spark.jars.packages": f"https://me:{SECRET}@host/a.jar",
    "spark.hadoop.fs.s3a.endpoint": f"http://me:{SECRET}@host:9000",
    "comment": f"password={SECRET}",
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_setting_is_hidden_unless_it_is_known_to_be_harmless(name: str) -> None:
    """By name, by the form of the value, and where neither is known."""
    assert SECRET not in setting(name, SECRETS[name])
    assert "1234567890123" not in setting(name, SECRETS[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.master", "local[2]"),
        ("spark.driver.memory", "2g"),
        ("spark.sql.shuffle.partitions", "8"),
        ("spark.sql.session.timeZone", "Europe/Berlin"),
        ("spark.databricks.delta.optimizeWrite.enabled", "true"),
        ("spark.hadoop.fs.s3a.endpoint", "http://127.0.0.1:9000"),
        ("spark.driver.extraJavaOptions", "-Xss4m -XX:+UseG1GC"),
        ("kafka.security.protocol", "SASL_SSL"),
        ("multiLine", "true"),
        ("maxFilesPerTrigger", "100"),
        ("dateFormat", "yyyy-MM-dd"),
        ("my.unknown.switch", "false"),
        ("my.unknown.wait", "30s"),
    ],
)
def test_what_is_harmless_is_shown(name: str, value: str) -> None:
    """An engineer must see what is in effect."""
    assert setting(name, value) == value


@given(st.from_regex(r"[a-z]{2,8}(\.[a-z]{2,8}){0,3}", fullmatch=True), st.text("abcdefgh", min_size=12, max_size=12))
def test_an_unknown_setting_is_hidden(name: str, value: str) -> None:
    """For any name."""
    assert setting("own." + name, value) == HIDDEN


def test_an_error_repeats_no_password_and_no_control_character() -> None:
    """Also in what a driver or a server has said."""
    error = Unavailable(
        f"postgresql://me:{SECRET}@host/db does not answer: password={SECRET}",
        url=f"s3a://k:{SECRET}@b/x?sig={SECRET}&a=1",
    )
    assert SECRET not in str(error)
    assert "postgresql://me:***@host/db" in str(error)
    hostile = Unavailable("a \x1b[2Jname\r\x07 \u202eevil \x9b31m", path="b\x00c")
    assert str(hostile) == r"a \x1b[2Jname\r\x07 \u202eevil \x9b31m path=b\x00c"


@given(st.text())
def test_printable_text_stays_as_it_is(text: str) -> None:
    """Escaping once is enough, and newlines, tabulators and letters of all scripts stay."""
    once = printable(text)
    assert printable(once) == once
    assert printable("Zoë\t北京\n") == "Zoë\t北京\n"
    assert message(message(text)) == message(text)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("duplicate key value violates unique constraint \"u_mail\" Key (mail, n)=(ada@x.org, (1)) already exists.",
         "duplicate key value violates unique constraint \"u_mail\" Key (mail, n)… already exists."),
        ("null value in column \"n\" of relation \"p\" Failing row contains (4, ada, null).",
         "null value in column \"n\" of relation \"p\" Failing row contains …."),
        ("invalid input syntax for type integer: \"ada\"", "invalid input syntax for type integer: …"),
        ("Duplicate entry 'ada-1' for key 'u_mail'", "Duplicate entry … for key 'u_mail'"),
        ("Data too long for column 'name' at row 1", "Data too long for column 'name' at row 1"),
        ("Incorrect integer value: 'ada' for column `x`.`p`.`n` at row 1",
         "Incorrect integer value: … for column `x`.`p`.`n` at row 1"),
        ("UNIQUE constraint failed: p.mail", "UNIQUE constraint failed: p.mail"),
    ],
)  # fmt: skip
def test_what_a_database_says_of_a_row_is_shown_without_its_values(said: str, shown: str) -> None:
    """Of PostgreSQL, MariaDB and SQLite."""
    assert without_values(said) == shown

"""A table on S3 is looked through as one on a local disk is; what the bucket keeps of deleted objects is said."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from lakegate.demo.aws_server import REGION, AwsServer, InjectedFault
from lakegate.errors import Unavailable
from lakegate.ops.certify import Question, certify, person
from tests.erasure.written import made, people


@pytest.fixture
def question(aws: AwsServer, s3: Any, tmp_path: Path) -> Question:
    """A table with an orphan of `bob` in a bucket of its own."""
    table = made(tmp_path / "t")
    table.file("b.parquet", people("bob"))
    bucket = f"b{uuid.uuid4().hex}"
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    for file in (one for one in table.root.rglob("*") if one.is_file()):
        s3.upload_file(str(file), bucket, f"lake/t/{file.relative_to(table.root)}")
    options = aws.client_options()
    settings = {
        "spark.hadoop.fs.s3a.endpoint": options["endpoint_url"],
        "spark.hadoop.fs.s3a.endpoint.region": options["region_name"],
        "spark.hadoop.fs.s3a.access.key": options["aws_access_key_id"],
        "spark.hadoop.fs.s3a.secret.key": options["aws_secret_access_key"],
    }
    return Question(table=f"s3a://{bucket}/lake/t", persons=(person("person=bob"),), settings=settings)


def bucket_of(question: Question) -> str:
    return question.table.split("/")[2]


def test_a_person_is_found_on_s3(question: Question, s3: Any) -> None:
    """And gone with the object."""
    found = certify(question).found
    assert [(one.place, one.path) for one in found] == [("orphan", f"{question.table}/b.parquet")]
    s3.delete_object(Bucket=bucket_of(question), Key="lake/t/b.parquet")
    assert certify(question).verdict == "clean"


def test_a_bucket_that_keeps_versions_is_not_clean(question: Question, s3: Any) -> None:
    """The deleted object can still be read."""
    s3.put_bucket_versioning(Bucket=bucket_of(question), VersioningConfiguration={"Status": "Enabled"})
    s3.delete_object(Bucket=bucket_of(question), Key="lake/t/b.parquet")
    certificate = certify(question)
    assert certificate.verdict == "incomplete"
    assert "versions of deleted objects remain readable" in certificate.not_looked_at[0].reason


def test_a_bucket_that_cannot_be_listed_is_refused(question: Question, aws: AwsServer) -> None:
    """Nothing is certified."""
    aws.fail(
        InjectedFault("error_before", "LIST", times=None, status=403, code="AccessDenied", message="Access Denied")
    )
    with pytest.raises(Unavailable, match="cannot be listed"):
        certify(question)


def test_an_object_that_cannot_be_read_makes_the_certificate_incomplete(question: Question, aws: AwsServer) -> None:
    """It is named; the others are looked at."""
    fault = InjectedFault("error_before", "GET", r"b\.parquet", times=None, status=403, code="AccessDenied")
    aws.fail(fault)
    certificate = certify(question)
    assert certificate.verdict == "incomplete"
    assert [(one.path, one.reason) for one in certificate.not_looked_at] == [
        (f"{question.table}/b.parquet", "it cannot be read (OSError)")
    ]

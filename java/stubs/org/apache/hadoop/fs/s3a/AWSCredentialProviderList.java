package org.apache.hadoop.fs.s3a;

import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;

public final class AWSCredentialProviderList implements AwsCredentialsProvider {}

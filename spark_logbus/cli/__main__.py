from spark_logbus.cli import main

if __name__ == "__main__":
    main()
